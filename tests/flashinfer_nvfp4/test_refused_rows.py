"""Every row of the table of what is refused in docs/nvfp4.md has a test that trips it and reads its message."""

from __future__ import annotations

import ast
from pathlib import Path

from refused_rows import PAGE, promised


def _tripped() -> set[str]:
    """String constants that look like rows, in test files that hold a message against a row."""
    found: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "says" for node in nodes):
            texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            found |= {text for text in texts if text.startswith("nvfp4-")}
    return found


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()

    assert len(promised()) == sum(line.startswith("| `nvfp4-") for line in lines) > 15
    assert set(promised()) == _tripped()


def test_each_row_says_what_is_seen_words_of_its_message_and_what_to_change() -> None:
    for seen, words, change in promised().values():
        assert seen
        assert words
        assert change
