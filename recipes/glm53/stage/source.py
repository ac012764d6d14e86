"""One Python file as text and syntax tree: finds places by name, and splices text there.

Everything around a splice stays byte for byte what it was. Lines and columns are those of `ast`: lines from 1, columns
in UTF-8 bytes.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glm53.stage.errors import Drifted, StageError

__all__ = ["Source", "Splice", "same", "statements"]

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Splice:
    """Text that takes the place of bytes ``[start, end)``."""

    start: int
    end: int
    text: str


def statements(code: str) -> list[ast.stmt]:
    """The statements of a piece of code, whatever its indentation."""
    return ast.parse(textwrap.dedent(code)).body


def same(left: list[ast.stmt], right: list[ast.stmt]) -> bool:
    """Whether two lists of statements say the same, however they are written."""
    return [_outline(one) for one in left] == [_outline(one) for one in right] and all(
        ast.dump(_cleaned(one)) == ast.dump(_cleaned(other)) for one, other in zip(left, right, strict=True)
    )


def _outline(node: ast.stmt) -> tuple[type[ast.stmt], str | None]:
    """What tells most statements apart without looking inside."""
    return type(node), getattr(node, "name", None)


def _cleaned(node: ast.stmt) -> ast.stmt:
    """The statement with its docstrings' white space made one: indentation moves with the code, lines are wrapped."""
    node = copy.deepcopy(node)
    for one in ast.walk(node):
        if isinstance(one, _SCOPES) and (text := ast.get_docstring(one)) is not None:
            one.body[0] = ast.Expr(ast.Constant(" ".join(text.split())))
    return node


class Source:
    """A file of a tree. Raises `StageError` if it is no Python."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self._bytes = text.encode("utf-8")
        try:
            self.module = ast.parse(text)
        except SyntaxError as error:
            raise StageError(
                f"{file}: {error}", "it cannot be read as Python", "Python's syntax", "Start from a clean tree"
            ) from error
        self._lines = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def scope(self, name: str) -> Scope:
        """The class or function of a dotted name, the module for an empty one; raises `Drifted` unless it is one."""
        found: list[Scope] = [self.module]
        for part in name.split(".") if name else []:
            found = [node for scope in found for node in _named(scope, part)]
        if len(found) != 1:
            raise Drifted(self.file, name, [getattr(node, "lineno", 1) for node in found])
        return found[0]

    def calls(self, scope: str, name: str) -> list[ast.Call]:
        """Calls of a function, by its name as it is written there (``time.sleep``), anywhere inside a scope."""
        return [
            node
            for node in ast.walk(self.scope(scope))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name
        ]

    def parameters(self, scope: str) -> list[str]:
        """Parameter names of a function."""
        node = self.scope(scope)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise Drifted(self.file, f"function {scope}", [])
        given = node.args
        return [one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]]

    def start(self, node: ast.AST) -> int:
        """Offset of a node's first byte; of its first decorator, if it has one."""
        decorators = getattr(node, "decorator_list", [])
        first: Any = decorators[0] if decorators else node
        return self._lines[first.lineno - 1] + first.col_offset - (1 if decorators else 0)

    def end(self, node: ast.AST) -> int:
        """Offset behind a node's last byte."""
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def line_start(self, node: ast.AST) -> int:
        """Offset of the line that a node begins on."""
        return self._bytes.rfind(b"\n", 0, self.start(node)) + 1

    def line_end(self, node: ast.AST) -> int:
        """Offset of the line behind a node."""
        found = self._bytes.find(b"\n", self.end(node))
        return len(self._bytes) if found < 0 else found + 1

    def indent(self, node: ast.AST) -> str:
        """White space in front of a statement."""
        return self._bytes[self.line_start(node) : self.start(node)].decode()

    def segment(self, node: ast.AST) -> str:
        """A node's own text."""
        return self._bytes[self.start(node) : self.end(node)].decode()

    def spliced(self, splices: list[Splice]) -> str:
        """The text with splices in place; they must not overlap."""
        out, at = b"", 0
        for one in sorted(splices, key=lambda splice: (splice.start, splice.end)):
            if one.start < at:
                raise ValueError(f"{self.file}: two edits meet at byte {one.start}; make them one")
            out += self._bytes[at : one.start] + one.text.encode("utf-8")
            at = one.end
        return (out + self._bytes[at:]).decode("utf-8")


def _named(scope: ast.AST, name: str) -> Iterator[Scope]:
    """Classes and functions of this name directly in a scope, also inside of its conditions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _SCOPES):
            if node.name == name:
                yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _named(node, name)
