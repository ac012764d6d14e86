"""The environment variables of the plugin: what they allow, and that a wrong one is refused and says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynamo_structural_tags.settings import VARIABLES, Mode, Reader, Settings


def test_without_variables_nothing_is_changed_in_stock() -> None:
    assert Settings.read({}) == Settings(Mode.OFF, Reader.AUTO, 10.0, 1024)
    assert Settings.read({"DYNAMO_STRUCTURAL_TAGS": "", "PATH": "/bin"}) == Settings()


def test_every_variable_is_read() -> None:
    given = {
        "DYNAMO_STRUCTURAL_TAGS": "enforce",
        "DYNAMO_STRUCTURAL_TAGS_READER": "dynamo-v2",
        "DYNAMO_STRUCTURAL_TAGS_COMPILE_SECONDS": "0.5",
        "DYNAMO_STRUCTURAL_TAGS_CACHE": "7",
    }

    found = Settings.read(given)

    assert (found.mode, found.reader) == (Mode.ENFORCE, Reader.DYNAMO_V2)
    assert (found.compile_seconds, found.cache) == (0.5, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DYNAMO_STRUCTURAL_TAGS", "on"),
        ("DYNAMO_STRUCTURAL_TAGS", "1"),
        ("DYNAMO_STRUCTURAL_TAGS_READER", "v2"),
        ("DYNAMO_STRUCTURAL_TAGS_COMPILE_SECONDS", "soon"),
        ("DYNAMO_STRUCTURAL_TAGS_COMPILE_SECONDS", "0"),
        ("DYNAMO_STRUCTURAL_TAGS_COMPILE_SECONDS", "nan"),
        ("DYNAMO_STRUCTURAL_TAGS_CACHE", "1.5"),
        ("DYNAMO_STRUCTURAL_TAGS_CACHE", "0"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")) as error:
        Settings.read({name: value})

    assert VARIABLES[name][1] in str(error.value)


@pytest.mark.parametrize("name", ["DYNAMO_STRUCTURAL_TAGS_MODE", "DYNAMO_STRUCTURAL_TAG", "DYNAMO_STRUCTURALTAGS"])
def test_a_misspelt_variable_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='enforce' is no setting") as error:
        Settings.read({name: "enforce"})

    assert "DYNAMO_STRUCTURAL_TAGS_READER" in str(error.value)


@pytest.mark.parametrize(("mode", "then"), [("off", "off"), ("report", "report"), ("enforce", "report")])
def test_with_an_untested_release_nothing_is_enforced(mode: str, then: str) -> None:
    assert Settings.read({"DYNAMO_STRUCTURAL_TAGS": mode}).reporting().mode == then


def test_the_page_has_each_variable_with_its_values_and_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text("utf-8")

    for name, (about, values, default) in VARIABLES.items():
        assert f"| `{name}` | {about} | {values} | {default} |" in page
