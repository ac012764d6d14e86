"""Small edits of a file, each at a place that is named and not quoted.

Every edit finds its place in the syntax tree, refuses with `Drifted` if that is not exactly one place, and changes
nothing where it was made before.
"""

from __future__ import annotations

import ast
import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from glm53.stage.errors import Drifted
from glm53.stage.source import Source, Splice, same, statements

__all__ = ["Argument", "Body", "Call", "Cut", "Edit", "Entry", "Import", "Insert", "Parameter", "Value"]


@dataclass(frozen=True, kw_only=True)
class Edit(ABC):
    """A change of one file. file: its path in the package. releases: on which ones; empty means on all."""

    file: str
    releases: str = ""

    def concerns(self, version: Version) -> bool:
        """Whether this release needs the edit."""
        return SpecifierSet(self.releases).contains(version, prereleases=True)

    @abstractmethod
    def splices(self, source: Source) -> list[Splice]:
        """What to change, nothing if it is so already. Raises `Drifted`."""


@dataclass(frozen=True, kw_only=True)
class Import(Edit):
    """One import statement among those of the module, in the order of module names."""

    code: str

    def splices(self, source: Source) -> list[Splice]:
        wanted = statements(self.code)
        found = [node for node in source.module.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if any(same([node], wanted) for node in found):
            return []
        if not found:
            raise Drifted(source.file, "an import at the top of the module", [])
        name = _module(wanted[0])
        kin = [node for node in found if _module(node).split(".")[0] == name.split(".")[0]] or found
        before = [node for node in kin if _module(node) <= name]
        at = source.line_end(before[-1]) if before else source.line_start(kin[0])
        return [Splice(at, at, self.code.strip() + "\n")]


@dataclass(frozen=True, kw_only=True)
class Insert(Edit):
    """Statements before or after a class or function, or first or last inside of it.

    anchor: its dotted name, empty for the module. `first` is behind the docstring. blank: empty lines around it.
    """

    anchor: str
    where: Literal["before", "after", "first", "last"]
    code: str
    blank: int = 0

    def splices(self, source: Source) -> list[Splice]:
        node = source.scope(self.anchor)
        wanted = statements(self.code)
        inside = self.where in ("first", "last")
        body = node.body if inside else _siblings(source.module, node)
        for index in range(len(body) - len(wanted) + 1):
            if same(list(body[index : index + len(wanted)]), wanted):
                return []
        gap = "\n" * self.blank
        if not inside:
            text = textwrap.indent(textwrap.dedent(self.code).strip("\n") + "\n", source.indent(node))
            at = source.line_start(node) if self.where == "before" else source.line_end(node)
            return [Splice(at, at, text + gap if self.where == "before" else gap + text)]
        text = textwrap.indent(textwrap.dedent(self.code).strip("\n") + "\n", source.indent(body[0]))
        if self.where == "last":
            at = source.line_end(body[-1])
            return [Splice(at, at, gap + text)]
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        at = source.line_end(body[0]) if documented else source.line_start(body[0])
        return [Splice(at, at, gap + text if documented else text + gap)]


@dataclass(frozen=True, kw_only=True)
class Call(Edit):
    """Another expression instead of the calls of a function inside a scope.

    call: its name as it is written there. times: how many calls there are. code: the expression; ``{arguments}`` in
    it stands for the arguments as they are written. It must not call the same function again.
    """

    scope: str
    call: str
    code: str
    times: int = 1

    def splices(self, source: Source) -> list[Splice]:
        found = source.calls(self.scope, self.call)
        if not found and self._made(source):
            return []
        if len(found) != self.times:
            raise Drifted(source.file, f"{self.call}(...) in {self.scope}", [node.lineno for node in found], self.times)
        splices = []
        for node in found:
            written = source.text.encode()[source.end(node.func) : source.end(node) - 1].decode().split("(", 1)[1]
            splices.append(Splice(source.start(node), source.end(node), self.code.replace("{arguments}", written)))
        return splices

    def _made(self, source: Source) -> bool:
        name = self.code.split("(")[0]
        return len(source.calls(self.scope, name)) >= self.times


@dataclass(frozen=True, kw_only=True)
class Cut(Edit):
    """No statement any more that does nothing but call this function, inside a scope; it is for files of ours.

    call: its name as it is written there. There must be one at least.
    """

    scope: str
    call: str

    def splices(self, source: Source) -> list[Splice]:
        calls = source.calls(self.scope, self.call)
        found = [
            node
            for node in ast.walk(source.scope(self.scope))
            if isinstance(node, ast.Expr) and any(node.value is call for call in calls)
        ]
        if not found or len(found) != len(calls):
            raise Drifted(source.file, f"statements {self.call}(...) in {self.scope}", [n.lineno for n in calls])
        return [Splice(source.line_start(node), source.line_end(node), "") for node in found]


@dataclass(frozen=True, kw_only=True)
class Argument(Edit):
    """Another value of a named argument, in the calls of a function inside a scope that pass it.

    call: the function's name as it is written there. name: the argument's. times: how many such calls there are.
    code: the value; ``{value}`` in it stands for the one that is there.
    """

    scope: str
    call: str
    name: str
    code: str
    times: int = 1

    def splices(self, source: Source) -> list[Splice]:
        found = [
            keyword.value
            for node in source.calls(self.scope, self.call)
            for keyword in node.keywords
            if keyword.arg == self.name
        ]
        if len(found) != self.times:
            lines = [node.lineno for node in found]
            raise Drifted(source.file, f"{self.call}({self.name}=...) in {self.scope}", lines, self.times)
        return [splice for node in found for splice in _changed(source, node, self.code)]


@dataclass(frozen=True, kw_only=True)
class Value(Edit):
    """Another value of one assignment. target: its left side as it is written, inside of `scope`.

    code: the value; ``{value}`` in it stands for the one that is there.
    """

    scope: str
    target: str
    code: str

    def splices(self, source: Source) -> list[Splice]:
        found = [
            node
            for node in ast.walk(source.scope(self.scope))
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and self.target in [ast.unparse(one) for one in _targets(node)]
            and node.value is not None
        ]
        if len(found) != 1:
            raise Drifted(source.file, f"{self.target} = ... in {self.scope}", [node.lineno for node in found])
        value = found[0].value
        assert value is not None
        return _changed(source, value, self.code)


@dataclass(frozen=True, kw_only=True)
class Entry(Edit):
    """One more entry at the end of a dictionary that is written out. target: what it is assigned to, in the module."""

    target: str
    key: str
    code: str

    def splices(self, source: Source) -> list[Splice]:
        found = [
            node.value
            for node in source.module.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and self.target in [ast.unparse(one) for one in _targets(node)]
            and isinstance(node.value, ast.Dict)
            and node.value.values
        ]
        if len(found) != 1:
            raise Drifted(source.file, f"{self.target} = {{...}}", [node.lineno for node in found])
        entries = found[0]
        wanted = ast.dump(ast.parse(self.code, mode="eval").body)
        for key, value in zip(entries.keys, entries.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == self.key:
                if ast.dump(value) == wanted:
                    return []
                raise Drifted(source.file, f"{self.target} without {self.key!r}", [key.lineno])
        last, key_of_last = entries.values[-1], entries.keys[-1]
        assert key_of_last is not None
        text = f',\n{source.indent(key_of_last)}"{self.key}": {self.code}'
        return [Splice(source.end(last), source.end(last), text)]


@dataclass(frozen=True, kw_only=True)
class Parameter(Edit):
    """A parameter with a default at the end of a function's parameters. code: ``name: type = default``."""

    scope: str
    code: str

    def splices(self, source: Source) -> list[Splice]:
        name = self.code.split(":")[0].split("=")[0].strip()
        if name in source.parameters(self.scope):
            return []
        node = source.scope(self.scope)
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        given = node.args
        if given.kwarg is not None or not (given.args or given.kwonlyargs):
            raise Drifted(source.file, f"parameters of {self.scope} that end with a named one", [])
        last: ast.AST = (given.kwonlyargs or given.args)[-1]
        defaults = [*given.defaults, *(one for one in given.kw_defaults if one is not None)]
        after = max(source.end(one) for one in [last, *defaults])
        split = source.start(last) != source.start(node) and getattr(last, "lineno", 0) != node.lineno
        gap = ",\n" + source.indent(last) if split else ", "
        return [Splice(after, after, gap + self.code)]


@dataclass(frozen=True, kw_only=True)
class Body(Edit):
    """Other statements in a function, behind its docstring.

    parameters: all of them as they are then, ``name: type = default``; empty leaves those that it has.
    """

    scope: str
    code: str
    parameters: tuple[str, ...] = ()

    def splices(self, source: Source) -> list[Splice]:
        node = source.scope(self.scope)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise Drifted(source.file, f"function {self.scope}", [])
        found = self._renamed(source, node) if self.parameters else []
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1:
            body = body[1:]
        if same(list(body), statements(self.code)):
            return found
        text = textwrap.indent(textwrap.dedent(self.code).strip("\n") + "\n", source.indent(body[0]))
        return [*found, Splice(source.line_start(body[0]), source.line_end(body[-1]), text)]

    def _renamed(self, source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Splice]:
        (wanted,) = statements(f"def _({', '.join(self.parameters)}): pass")
        assert isinstance(wanted, ast.FunctionDef)
        if ast.dump(node.args) == ast.dump(wanted.args):
            return []
        written = [one for one in ast.iter_child_nodes(node.args) if isinstance(one, ast.arg | ast.expr)]
        if not written or node.args.vararg or node.args.kwarg or node.args.posonlyargs:
            raise Drifted(source.file, f"parameters of {self.scope} that are named", [])
        first = min(written, key=source.start)
        gap = ",\n" + source.indent(first) if first.lineno != node.lineno else ", "
        return [Splice(source.start(first), max(map(source.end, written)), gap.join(self.parameters))]


def _changed(source: Source, value: ast.expr, code: str) -> list[Splice]:
    """The splice that puts ``code`` in the place of a value, around it where it has ``{value}``; none if it is so."""
    wanted = ast.unparse(ast.parse(code.replace("{value}", "_VALUE_"), mode="eval").body)
    before, _, after = wanted.partition("_VALUE_")
    now = ast.unparse(value)
    if now == wanted or ("{value}" in code and now.startswith(before) and now.endswith(after)):
        return []
    return [Splice(source.start(value), source.end(value), code.replace("{value}", source.segment(value)))]


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _module(node: ast.stmt) -> str:
    if isinstance(node, ast.ImportFrom):
        return "." * node.level + (node.module or "")
    assert isinstance(node, ast.Import)
    return node.names[0].name


def _siblings(module: ast.Module, node: ast.AST) -> list[ast.stmt]:
    for parent in ast.walk(module):
        body = getattr(parent, "body", None)
        if isinstance(body, list) and node in body:
            return body
    return []
