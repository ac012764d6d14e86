"""Our modules where upstream keeps such code: imports follow, and upstream's licence header goes on top."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm53.stage.errors import StageError
from glm53.stage.source import Source, Splice

__all__ = ["Place", "header", "moved", "repository"]

#: Packages of this repository: none of them may be imported by what was moved.
OURS = (
    "dynamo_structural_tags",
    "flashinfer_nvfp4",
    "glm53",
    "mooncake_tier",
    "stockpatch",
    "vllm_blhnc",
    "vllm_cpu_dsa",
)


@dataclass(frozen=True)
class Place:
    """A file of this repository and where it goes.

    source: below the repository's root. to: below upstream's root; ``{package}`` stands for its package. module: its
    name there, for imports; empty for tests and benchmarks. without: functions that only a plugin needs, which stay
    here, and with them the imports of ours that nothing else uses.
    """

    source: str
    to: str
    module: str = ""
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its module name here."""
        inside = self.source.removeprefix("plugins/").removeprefix("recipes/")
        return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def repository() -> Path:
    """The root of this repository. Raises `StageError` where only the packages are installed: tests move, too."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "pyproject.toml").is_file() and (folder / "plugins").is_dir():
            return folder
    raise StageError(
        "glm53 is installed without its repository",
        "staging moves sources and tests out of it",
        "an editable installation, or a checkout",
        "Clone the repository and run there",
    )


def header(text: str) -> str:
    """The licence that a file begins with, as comment lines: its first comments, or a docstring that is a licence."""
    documented = ast.get_docstring(ast.parse(text), clean=True) or ""
    if documented.startswith("Copyright"):
        return "".join(f"# {line}".rstrip() + "\n" for line in documented.splitlines()) + "\n"
    lines = []
    for line in text.splitlines(keepends=True):
        if not line.startswith("#") or line.startswith("#!"):
            break
        lines.append(line)
    return "".join(lines)


def moved(text: str, place: Place, modules: Mapping[str, str], words: Mapping[str, str], head: str) -> str:
    """The text of a file that goes elsewhere.

    modules: where modules are, by where they were. words: texts to replace in strings, comments and docstrings. head:
    the licence header. Raises `StageError` if it still needs one of our packages.
    """
    source = Source(place.source, text)
    if place.without:
        source = Source(place.source, _without(source, place.without))
    splices = []
    for node in ast.walk(source.module):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            splices += _from(source, node, modules)
        elif isinstance(node, ast.Import) and any(one.name.split(".")[0] in OURS for one in node.names):
            splices.append(_plain(source, node, modules))
    out = source.spliced(splices)
    for ours, theirs in words.items():
        out = out.replace(ours, theirs)
    return head + out


def _without(source: Source, names: tuple[str, ...]) -> str:
    """The text without these functions, their names in ``__all__``, and imports of ours that are not used then."""
    gone = [source.scope(name) for name in names]
    used = {
        node.id
        for kept in source.module.body
        if kept not in gone
        for node in ast.walk(kept)
        if isinstance(node, ast.Name)
    }
    splices = [Splice(source.line_start(node), _blank_end(source, node), "") for node in gone]
    for node in source.module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            if not used & {one.asname or one.name for one in node.names}:
                splices.append(Splice(source.line_start(node), source.line_end(node), ""))
        elif isinstance(node, ast.Import) and not used & {one.asname or one.name.split(".")[0] for one in node.names}:
            splices.append(Splice(source.line_start(node), source.line_end(node), ""))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            kept_names = [name for name in ast.literal_eval(node.value) if name not in names]
            splices.append(Splice(source.start(node.value), source.end(node.value), json.dumps(kept_names)))
    return source.spliced(splices)


def _blank_end(source: Source, node: ast.AST) -> int:
    """Offset behind the empty lines that follow a node."""
    data = source.text.encode("utf-8")
    at = source.line_end(node)
    while data[at : at + 1] == b"\n":
        at += 1
    return at


def _from(source: Source, node: ast.ImportFrom, modules: Mapping[str, str]) -> list[Splice]:
    name = node.module or ""
    if name.split(".")[0] not in OURS:
        return []
    inside = source.segment(node).split(" import ", 1)[1]
    if name in modules:
        return [Splice(source.start(node), source.end(node), f"from {modules[name]} import {inside}")]
    lines = []  # from a package import its modules
    for one in node.names:
        whole = f"{name}.{one.name}"
        if whole not in modules:
            raise _missing(source, whole)
        parent, _, last = modules[whole].rpartition(".")
        known = one.asname or one.name
        lines.append(f"from {parent} import {last}" + (f" as {known}" if known != last else ""))
    return [Splice(source.start(node), source.end(node), f"\n{source.indent(node)}".join(lines))]


def _plain(source: Source, node: ast.Import, modules: Mapping[str, str]) -> Splice:
    names = []
    for one in node.names:
        if one.name.split(".")[0] in OURS and (one.name not in modules or one.asname is None):
            raise _missing(source, one.name)
        names.append(modules.get(one.name, one.name) + (f" as {one.asname}" if one.asname else ""))
    return Splice(source.start(node), source.end(node), "import " + ", ".join(names))


def _missing(source: Source, name: str) -> StageError:
    return StageError(
        f"{source.file} imports {name}",
        "the topic does not move that module",
        "modules that are moved with it",
        "Add it to the topic's places, or cut the import",
    )
