"""docs/operations.md cannot lag: every command, option and key of the edge is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from glm53.cli import app
from glm53.edge.model import Edge, Limits, Member, Tls

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = ["models", "chat", "batch", "roll", "edge lint", "edge render", "edge run", "edge drain", "edge keys"]
#: The same everywhere, or said by example.
COMMON = {"--help", "--out", "--to"}


def _options(words: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    for word in words.split():
        command = command.commands[word]
    return {option for one in command.params for option in one.opts if option.startswith("--")}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_and_option_is_on_the_page(words: str) -> None:
    assert f"glm53 {words}" in PAGE
    assert {option for option in _options(words) - COMMON if option not in PAGE} == set()


@pytest.mark.parametrize("model", [Edge, Member, Limits, Tls])
def test_every_key_of_an_edge_is_on_the_page(model: type[BaseModel]) -> None:
    table = PAGE.partition("| Key | Default |")[2].partition("\n\n")[0]

    assert {key for key in model.model_fields if not re.search(rf"\b{key}\b", table)} == set()
