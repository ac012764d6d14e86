"""The table of refused combinations in docs/blhnc.md, which tests hold against what is really said."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGE", "key_words", "says"]

PAGE = Path(__file__).parents[2] / "docs" / "blhnc.md"
_ROW = re.compile(r"^\| `(?P<row>(?:start|peer|request)-[a-z-]+)` \|[^|]*\|(?P<words>[^|]*)\|[^|]*\|$", re.MULTILINE)


def key_words() -> dict[str, list[str]]:
    """Row of the table -> the words in backticks that its message contains."""
    return {found["row"]: re.findall("`([^`]+)`", found["words"]) for found in _ROW.finditer(PAGE.read_text())}


def says(row: str, message: str) -> None:
    """Assert that the message says what the table promises for this row."""
    words = key_words()[row]

    assert words
    for word in words:
        assert word in message, f"{row}: {word!r} is not in: {message}"
