"""Our modules where upstream keeps such code: imports follow, and upstream's licence header goes on top."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm53.stage.edits import Edit
from glm53.stage.errors import StageError
from glm53.stage.source import Source, Splice

__all__ = ["Place", "header", "moved", "repository"]

#: Packages of this repository: none of them may be imported by what was moved.
OURS = (
    "dynamo_structural_tags",
    "flashinfer_nvfp4",
    "glm53",
    "mooncake_tier",
    "rl_capture",
    "stockpatch",
    "vllm_blhnc",
    "vllm_cpu_dsa",
)


@dataclass(frozen=True)
class Place:
    """A file of this repository and where it goes.

    source: below the repository's root. to: below upstream's root; ``{package}`` stands for its package. module: its
    name there, for imports; empty for tests and benchmarks. without: functions, classes and constants that only a
    plugin needs, which stay here; only: those that do not, where they are fewer. edits: what is otherwise in upstream's
    tree, as edits of the file as it is here. Imports that nothing uses then stay here, too. Files of C++ and CUDA move
    whole (`glm53.stage.native`).
    """

    source: str
    to: str
    module: str = ""
    without: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    only: tuple[str, ...] = ()

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
    if place.only:
        source = Source(place.source, _only(source, place.only))
    for name in place.without:
        source = Source(place.source, _without(source, name))
    for edit in place.edits:
        source = Source(place.source, source.spliced(edit.splices(source)))
    if place.without or place.only or place.edits:
        source = Source(place.source, _without_unused_imports(source))
    splices = []
    for node in ast.walk(source.module):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            splices += _from(source, node, modules)
        elif isinstance(node, ast.Import) and any(one.name.split(".")[0] in OURS for one in node.names):
            splices.append(_plain(source, node, modules))
    out = source.spliced(splices)
    for ours, theirs in words.items():
        out = out.replace(ours, theirs)
    return head + out.rstrip("\n") + "\n"


def _only(source: Source, kept: tuple[str, ...]) -> str:
    """The text with its docstring, its imports, and of what it defines and does these definitions."""
    body = source.module.body
    if missing := set(kept) - {_defined(node) for node in body}:
        raise StageError(
            f"{source.file} has no {', '.join(sorted(missing))}", "a topic moves it", "names that it has", "Correct it"
        )
    splices, follows = [], True  # a string behind what is kept is its docstring
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            stays = follows
        else:
            typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            stays = isinstance(node, ast.Import | ast.ImportFrom) or typing_only or _defined(node) in kept
        follows = stays
        if not stays:
            splices.append(Splice(_comment_start(source, node), _blank_end(source, node), ""))
    return source.spliced(splices)


def _defined(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else _assigned(node)


def _without(source: Source, name: str) -> str:
    """The text without this function, class, method or constant (and its docstring), and its name in ``__all__``."""
    body = source.module.body
    gone: list[ast.stmt] = [node for node in body if _assigned(node) == name]
    if gone:
        after = body[body.index(gone[0]) + 1 :][:1]
        gone += [node for node in after if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    else:
        found = source.scope(name)
        assert isinstance(found, ast.stmt)
        gone = [found]
    splices = [Splice(_comment_start(source, node), _blank_end(source, node), "") for node in gone]
    for node in body:
        if isinstance(node, ast.Assign) and node not in gone and _assigned(node) == "__all__":
            kept = [one for one in ast.literal_eval(node.value) if one != name]
            splices.append(Splice(source.start(node.value), source.end(node.value), json.dumps(kept)))
    return source.spliced(splices)


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else None


def _without_unused_imports(source: Source) -> str:
    """The text without the names that are imported at its top and used nowhere, in annotations neither."""
    used = {node.id for node in ast.walk(source.module) if isinstance(node, ast.Name)}
    splices = []
    for node in source.module.body:
        if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "module", "") == "__future__":
            continue
        kept = [one for one in node.names if (one.asname or one.name.split(".")[0]) in used]
        if not kept:
            splices.append(Splice(source.line_start(node), source.line_end(node), ""))
        elif len(kept) < len(node.names):
            node.names = kept
            splices.append(Splice(source.start(node), source.end(node), ast.unparse(node)))
    return source.spliced(splices)


def _comment_start(source: Source, node: ast.AST) -> int:
    """Offset of the comment that stands directly above a node, or of the node's line."""
    at = source.line_start(node)
    for line in reversed(source.text.encode("utf-8")[:at].splitlines(keepends=True)):
        if not line.startswith(b"#"):
            break
        at -= len(line)
    return at


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
