"""Edits of what a function says of itself: its return type, its docstring, its refusal. Parameters are in `edits`."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass

from glm53.stage.edits import Edit
from glm53.stage.errors import Drifted
from glm53.stage.source import Source, Splice

__all__ = ["Docstring", "Message", "Returns"]


@dataclass(frozen=True, kw_only=True)
class Returns(Edit):
    """Another return type of a function. code: the annotation."""

    scope: str
    code: str

    def splices(self, source: Source) -> list[Splice]:
        node = source.scope(self.scope)
        given = getattr(node, "returns", None)
        if given is None:
            raise Drifted(source.file, f"return type of {self.scope}", [])
        if ast.unparse(given) == ast.unparse(ast.parse(self.code, mode="eval").body):
            return []
        return [Splice(source.start(given), source.end(given), self.code)]


@dataclass(frozen=True, kw_only=True)
class Docstring(Edit):
    """Another docstring of a function or class, of the module where `scope` is empty; there must be one.

    text: what stands between the quotes, indented like code; ``{text}`` in it stands for what is there.
    """

    scope: str
    text: str

    def splices(self, source: Source) -> list[Splice]:
        first = source.scope(self.scope).body[0]
        opening = re.match(r'[rR]?"""', source.segment(first))
        if opening is None:
            raise Drifted(source.file, f'docstring of {self.scope or "the module"} in """', [])
        there = source.segment(first)[opening.end() : -3].rstrip()
        indent = source.indent(first)
        wanted = textwrap.indent(textwrap.dedent(self.text).strip("\n"), indent).removeprefix(indent).rstrip()
        before, around, after = wanted.partition("{text}")
        if there == wanted or (around and there.startswith(before) and there.endswith(after)):
            return []
        text = f"{before}{there if around else ''}{after}"
        end = f"\n{indent}" if "\n" in text else ""
        return [Splice(source.start(first), source.end(first), f'{opening[0]}{text}{end}"""')]


@dataclass(frozen=True, kw_only=True)
class Message(Edit):
    """Another message of the only error of its type that a function raises. code: the expression."""

    scope: str
    error: str
    code: str

    def splices(self, source: Source) -> list[Splice]:
        found = [node for node in source.calls(self.scope, self.error) if node.args]
        if len(found) != 1:
            raise Drifted(source.file, f"{self.error}(...) in {self.scope}", [node.lineno for node in found])
        said = found[0].args[0]
        if ast.dump(said) == ast.dump(ast.parse(self.code, mode="eval").body):
            return []
        return [Splice(source.start(said), source.end(said), self.code)]
