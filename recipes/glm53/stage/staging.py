"""What a topic changes in a tree, computed without writing, then written as a whole or not at all."""

from __future__ import annotations

import difflib
import os
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from glm53.stage.edits import Edit
from glm53.stage.errors import Drifted, StageError
from glm53.stage.formatting import formatted
from glm53.stage.native import SUFFIXES, moved_native
from glm53.stage.place import Place, header, moved, repository
from glm53.stage.same import same_native, same_python
from glm53.stage.source import Source
from glm53.stage.topic import Topic
from glm53.stage.tree import Tree

__all__ = ["Change", "State", "Verdict", "changes", "diff", "examine", "write"]


class State(StrEnum):
    """How a tree stands to a topic."""

    NEEDED = "needed"
    STAGED = "staged"
    UPSTREAM = "upstream"
    DRIFTED = "drifted"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Change:
    """One file before (None if it is new) and after."""

    path: Path
    before: str | None
    after: str


@dataclass(frozen=True)
class Verdict:
    """A tree's state for a topic, and where one sees it. changes: what staging would change, where it is needed."""

    topic: Topic
    tree: Tree
    state: State
    place: str
    tested: bool
    changes: tuple[Change, ...] = ()


def changes(topic: Topic, tree: Tree) -> list[Change]:
    """The files that the topic changes in this tree; none if all of it is there. Raises `StageError`, `Drifted`."""
    found = [*_edited(topic, tree), *_placed(topic, tree)]
    return [change for change in found if change.before != change.after]


def examine(topic: Topic, tree: Tree) -> Verdict:
    """What there is to do for a topic in this tree; never raises for what the tree holds."""
    tested = topic.window.contains(tree.version, prereleases=True)
    try:
        found = changes(topic, tree)
    except StageError as error:
        if (place := _solved(topic, tree)) is not None:
            return Verdict(topic, tree, State.UPSTREAM, place, tested)
        state = State.DRIFTED if tested or isinstance(error, Drifted) else State.ELSEWHERE
        return Verdict(topic, tree, state, str(error), tested)
    if not found:
        return Verdict(topic, tree, State.STAGED, "", tested)
    if (place := _solved(topic, tree)) is not None:
        return Verdict(topic, tree, State.UPSTREAM, place, tested)
    places = ", ".join(change.path.relative_to(tree.root).as_posix() for change in found if change.before is not None)
    return Verdict(topic, tree, State.NEEDED, places, tested, tuple(found))


def diff(tree: Tree, found: list[Change]) -> str:
    """The changes as a patch."""
    parts: list[str] = []
    for change in found:
        name = change.path.relative_to(tree.root).as_posix()
        parts += difflib.unified_diff(
            (change.before or "").splitlines(keepends=True),
            change.after.splitlines(keepends=True),
            f"a/{name}" if change.before is not None else "/dev/null",
            f"b/{name}",
        )
    return "".join(parts)


def write(found: list[Change]) -> None:
    """Write all files; if one cannot be written, or an interrupt comes, those before it are put back."""
    done: list[Change] = []
    try:
        for change in found:
            _replace(change.path, change.after)
            done.append(change)
    except BaseException:
        for change in reversed(done):
            if change.before is None:
                change.path.unlink(missing_ok=True)
            else:
                _replace(change.path, change.before)
        raise


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else 0o644
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".stage-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, mode & 0o777)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _solved(topic: Topic, tree: Tree) -> str | None:
    try:
        return topic.solved(tree)
    except StageError:
        return None


def _edited(topic: Topic, tree: Tree) -> list[Change]:
    by_file: dict[str, list[Edit]] = {}
    for edit in topic.edits_for(tree.version):
        by_file.setdefault(edit.file, []).append(edit)
    found = []
    for file, edits in by_file.items():
        source = tree.source(file)
        before = source.text
        if windows := before.count("\r\n") == before.count("\n") > 0:
            source = Source(source.file, before.replace("\r\n", "\n"))
        start = source.text
        for edit in edits:
            if splices := edit.splices(source):
                source = Source(source.file, source.spliced(splices))
        path, after = tree.path(file), source.text
        if after != start:
            after = formatted(tree, path, after, start)
        found.append(Change(path, before, after.replace("\n", "\r\n") if windows else after))
    return found


def _placed(topic: Topic, tree: Tree) -> list[Change]:
    here = repository()
    head = header(tree.source(topic.near).text)
    modules = {place.name: place.module for place in topic.places if place.module}
    every = (*topic.places, *topic.tests)
    files = {place.source: _target(tree, place).relative_to(tree.root).as_posix() for place in every}
    found = []
    for place in every:
        path = _target(tree, place)
        before = path.read_bytes().decode("utf-8") if path.is_file() else None
        text = (here / place.source).read_text(encoding="utf-8")
        if path.suffix in SUFFIXES:
            after = moved_native(text, place, files, topic.renamed, head)
        else:
            after = moved(text, place, modules, topic.renamed, head)
        if before is not None and (same_native if path.suffix in SUFFIXES else same_python)(before, after):
            continue  # upstream's formatter may have been over it
        if before is not None:
            raise StageError(
                f"{path.relative_to(tree.root)} is there already, with other content",
                "the topic would overwrite it",
                "no file of that name",
                "Move or remove it, or choose another place in the topic",
            )
        found.append(Change(path, None, formatted(tree, path, after)))
    return found


def _target(tree: Tree, place: Place) -> Path:
    if place.to.startswith("{package}/"):
        return tree.package / place.to.removeprefix("{package}/")
    return tree.root / place.to
