"""The folders of the package: which may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mooncake_tier

PACKAGE = Path(mooncake_tier.__path__[0])
ORDER = ("client", "identity", "events", "node", "offloading", "store")


def _imported(module: Path) -> set[str]:
    """Names behind ``mooncake_tier.`` that a module imports anywhere, for types too."""
    nodes = [
        node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    whole = {f"{node.module}.{one.name}" for node in nodes for one in node.names}
    return {name.split(".")[1] for name in whole if name.startswith("mooncake_tier.")}


def _reached(module: Path) -> set[str]:
    """Folders that a module imports, also through modules beside the folders."""
    found, ahead = set(), _imported(module)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            beside = PACKAGE / f"{name}.py"
            ahead |= _imported(beside) if beside.is_file() else set()
    return found & set(ORDER)


@pytest.mark.parametrize("folder", ORDER)
def test_a_folder_imports_of_the_others_only_those_before_it(folder: str) -> None:
    modules = sorted((PACKAGE / folder).glob("*.py"))

    assert len(modules) > 1
    for module in modules:
        assert _reached(module) <= set(ORDER[: ORDER.index(folder) + 1]), module


def test_the_order_is_the_one_that_the_package_states() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert folders == set(ORDER)
    assert ", ".join(f"`{name}`" for name in ORDER) in (mooncake_tier.__doc__ or "")
