"""docs/recipes.md cannot lag: every key, recipe and command line of recipes has its place there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from recipe_files import RECIPES

from glm53.deployment import Deployment
from glm53.deployment.roles import Role

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def _documented() -> set[str]:
    """Keys in the first column of the table, ``.tail`` completed with the head before it."""
    found = set()
    for row in re.findall(r"^\| (`[^|]*`) \|", PAGE.partition("## Keys")[2].partition("\n## ")[0], re.MULTILINE):
        head = ""
        for key in re.findall(r"`([^`]+)`", row):
            head = key.rpartition(".")[0] if not key.startswith(".") else head
            found.add(key if not key.startswith(".") else head + key)
    return found


def _keys(section: type[BaseModel], prefix: str) -> set[str]:
    keys = set()
    for name, field in section.model_fields.items():
        inner = [one for one in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(one, type)]
        model: type[BaseModel] | None = next((one for one in inner if issubclass(one, BaseModel)), None)
        if model is None or name in ("make", "adapters"):
            keys.add(prefix + name)
        elif name == "roles":
            keys |= _keys(Role, "roles.ROLE.")
        else:
            keys |= _keys(model, f"{prefix}{name}.")
    return keys


def test_every_key_has_a_row() -> None:
    local = (ROOT / "docs" / "local_stack.md").read_text(encoding="utf-8")
    assert "`model.make`" in local

    assert _keys(Deployment, "") - {"model.make"} <= _documented()


def test_no_row_is_about_a_key_that_does_not_exist() -> None:
    assert _documented() <= _keys(Deployment, "")


def test_every_row_says_why_and_has_a_default() -> None:
    """Key, default, reason: none of the three is left empty."""
    table = PAGE.partition("## Keys")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("| `")]

    assert len(rows) > 50
    assert [row for row in rows if len(row) != 3 or not all(cell.strip() for cell in row)] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_named(path: Path) -> None:
    assert f"[{path.stem}](../recipes/{path.name})" in PAGE
