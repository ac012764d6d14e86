"""The table of what is refused in docs/nvfp4.md, which tests hold against what is really said."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["promised", "says"]

PAGE = Path(__file__).parents[2] / "docs" / "nvfp4.md"
_ROW = re.compile(
    r"^\| `(?P<row>nvfp4-[a-z-]+)` \|(?P<seen>[^|]*)\|(?P<words>[^|]*)\|(?P<change>[^|]*)\|$", re.MULTILINE
)


def promised() -> dict[str, tuple[str, list[str], str]]:
    """Row of the table -> what is seen, the words in backticks that its message contains, what to change."""
    rows = _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return {
        row["row"]: (row["seen"].strip(), re.findall("`([^`]+)`", row["words"]), row["change"].strip()) for row in rows
    }


def says(row: str, message: str) -> None:
    """Assert that the message says what the table promises for this row."""
    _, words, _ = promised()[row]

    assert words
    for word in words:
        assert word in message, f"{row}: {word!r} is not in: {message}"
