"""The distribution asks for floors only, so that it settles into a serving image without moving a pin."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# What vLLM, Dynamo and NIXL bring and pin themselves: a serving image has it, and nobody else needs it.
BROUGHT_BY_THE_IMAGE = {
    "torch",
    "vllm",
    "ai-dynamo",
    "ai-dynamo-runtime",
    "nixl",
    "nixl-cu12",
    "transformers",
}


def _requirements(*texts: str) -> list[Requirement]:
    return [Requirement(text) for text in texts]


def test_the_core_dependencies_are_packaging_alone() -> None:
    assert [each.name for each in _requirements(*PROJECT["dependencies"])] == ["packaging"]


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_no_dependency_has_an_upper_bound_or_an_exact_version(extra: str) -> None:
    texts = PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]
    operators = {each.operator for one in _requirements(*texts) for each in one.specifier}

    assert operators <= {">="}


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_nothing_asks_for_what_the_serving_image_brings(extra: str) -> None:
    texts = PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]

    assert {each.name for each in _requirements(*texts)} & BROUGHT_BY_THE_IMAGE == set()


def test_every_package_folder_is_part_of_the_distribution() -> None:
    """An editable install hides a forgotten one; a wheel would lack it."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]

    found = {
        ".".join(init.parent.relative_to(REPOSITORY / root).parts)
        for root in ("plugins", "recipes")
        for init in (REPOSITORY / root).rglob("__init__.py")
    }
    assert set(settings["packages"]) == found
