"""Every row of the table of refused combinations in docs/blhnc.md has a test that trips it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _rows() -> list[str]:
    """The ids in the first column, in order."""
    lines = (ROOT / "docs" / "blhnc.md").read_text().splitlines()
    return [line.split("`")[1] for line in lines if line.startswith(("| `start-", "| `peer-", "| `request-"))]


def _named_in_tests() -> dict[str, set[str]]:
    """String constants that look like rows -> the test files that hold them and call `says`, which checks a row."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests" / "vllm_blhnc").glob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        if not any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "says" for node in nodes):
            continue
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_row(node.value):
                found.setdefault(node.value, set()).add(path.name)
    return found


def _is_row(text: str) -> bool:
    return text.startswith(("start-", "peer-", "request-"))


def test_each_refused_combination_has_a_test_and_each_test_a_row() -> None:
    rows = _rows()

    assert len(rows) > 40
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(_named_in_tests())


def test_each_row_promises_words_of_its_message_and_what_to_change() -> None:
    lines = (ROOT / "docs" / "blhnc.md").read_text().splitlines()
    for line in (line for line in lines if line.startswith(("| `start-", "| `peer-", "| `request-"))):
        _, _, seen, words, change, _ = (cell.strip() for cell in line.split("|"))

        assert seen
        assert words.count("`") >= 2
        assert change
