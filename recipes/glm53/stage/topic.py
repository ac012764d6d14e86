"""One change for one upstream project, and what its maintainers are told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from glm53.stage.edits import Edit
from glm53.stage.errors import StageError
from glm53.stage.place import Place
from glm53.stage.tree import Project, Tree
from stockpatch.find import find_register
from stockpatch.register import Patch

__all__ = ["Evidence", "Said", "Topic"]


@dataclass(frozen=True)
class Evidence:
    """A figure, and the command of this repository that gave it."""

    figure: str
    command: str


@dataclass(frozen=True)
class Said:
    """why: what is wrong or missing. thread: where upstream discusses it. remove_when: when we do not need it."""

    why: str
    thread: str
    remove_when: str


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A change that upstream can review.

    title: the commit's first line. releases: those it is written for. how: what the change does. near: a file of the
    package whose licence header new files get. solved: where upstream has it by itself, None while it has not.
    records: the patches it replaces, as ``plugin:id``; the first one says why, where upstream discusses it, and when
    it is not needed any more, unless `said` does. why: in place of that one's, which also speaks of the patch.
    renamed: texts to replace in moved files.
    """

    id: str
    project: Project
    title: str
    releases: str
    how: str
    risks: str
    near: str
    solved: Callable[[Tree], str | None]
    edits: tuple[Edit, ...] = ()
    places: tuple[Place, ...] = ()
    tests: tuple[Place, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    records: tuple[str, ...] = ()
    said: Said | None = None
    why: str = ""
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def window(self) -> SpecifierSet:
        """The releases it is written for."""
        return SpecifierSet(self.releases)

    def comes_after(self, version: Version) -> bool:
        """Whether a release is older than those that it is written for."""
        return any(one.operator in (">=", "==", "~=") and version < Version(one.version) for one in self.window)

    def edits_for(self, version: Version) -> tuple[Edit, ...]:
        """The edits that this release needs."""
        return tuple(edit for edit in self.edits if edit.concerns(version))

    def patches(self) -> list[Patch]:
        """The records it replaces. Raises LookupError if there is none of that name."""
        found = []
        for record in self.records:
            plugin, _, name = record.partition(":")
            by_name = {patch.id: patch for patch in find_register(plugin).patches}
            if name not in by_name:
                raise LookupError(f"topic {self.id} names {record}, but the register has {', '.join(by_name)}")
            found.append(by_name[name])
        return found

    def reasons(self) -> Said:
        """Why upstream should have it, by `said` or by the register."""
        if self.said is not None:
            return self.said
        if not self.records:
            raise StageError(
                f"topic {self.id} has neither records nor `said`", "nobody could review it", "one of both", "Write it"
            )
        first = self.patches()[0]
        return Said(self.why or first.why, first.upstream, first.remove_when)
