"""Comments and docstrings in lines of another length; every other line stays what it is."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Collection

__all__ = ["excused", "wrapped"]

_COMMENT = re.compile(r"(\s*#:? ?)(\S.*)")
_PROSE = re.compile(r"(\s*)(\S.*)")
_ITEM = re.compile(r"([-*] |\d+\. )\S")
_DRAWN = re.compile(r"\S {2,}\S|\\$|^(>>>|\||=|[\"']{3}$)")


def wrapped(text: str, width: int, rows: Collection[int]) -> str:
    """The text with those of these rows (from 1) that are comments or docstrings in lines of at most ``width``.

    What is too much for a line goes in front of the next one of the same paragraph. Rows with columns, doctests or a
    backslash at their end stay as they are.
    """
    lines = text.split("\n")
    kinds = dict.fromkeys(_comments(text), _COMMENT) | dict.fromkeys(_documented(text), _PROSE)
    out: list[str] = []
    over: tuple[str, str] | None = None  # margin, and words that the line above has no room for
    for row, line in enumerate(lines, 1):
        found = kinds[row].fullmatch(line) if row in kinds else None
        if over is not None:
            if found and found[1] == over[0] and not _ITEM.match(found[2]) and not _DRAWN.search(found[2]):
                line = f"{found[1]}{over[1]} {found[2]}"
                found, over = kinds[row].fullmatch(line), None
            else:
                out += _lines(*over, over[0], width)
                over = None
        elif row not in rows:
            found = None
        if found is None or len(line) <= width or _DRAWN.search(found[2]):
            out.append(line)
            continue
        item = _ITEM.match(found[2])
        margin = found[1] + " " * len(item[1] if item else "")
        first, *rest = _lines(found[1], found[2], margin, width)
        out.append(first)
        if rest:
            over = margin, " ".join(one[len(margin) :] for one in rest)
    return "\n".join(out)


def excused(text: str, rows: Collection[int]) -> str:
    """The text with ``# noqa: E501`` at these rows; behind a string's end where the row lies inside of it."""
    ends = {row: row for row in rows}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            ends |= {row: token.end[0] for row in rows if token.start[0] <= row < token.end[0]}
    lines = text.split("\n")
    for row in set(ends.values()):
        lines[row - 1] += "  # noqa: E501"
    return "\n".join(lines)


def _lines(first: str, words: str, margin: str, width: int) -> list[str]:
    return textwrap.wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _comments(text: str) -> set[int]:
    """Rows that hold a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {one.start[0] for one in tokens if one.type == tokenize.COMMENT and not one.line[: one.start[1]].strip()}


def _documented(text: str) -> set[int]:
    """Rows of strings that are statements by themselves: docstrings of modules, classes, functions and attributes."""
    return {
        row
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for row in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
