"""A plugin's patches to stock code as a table: verified all together, applied once, reported in one line.

Every record says what it replaces, on which releases, why, where upstream discusses it and when to delete
it. Nothing is replaced before every target of the call was found and has the parameters it had when the
patch was written; a target that moved raises, because a patch that quietly does nothing is worse than none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stockpatch.target import Target, TargetError
from stockpatch.versions import Window, installed

__all__ = ["Patch", "PatchError", "Register", "Report", "Row", "reports"]

_log = logging.getLogger("stockpatch")
_registers: dict[str, Register] = {}

Status = Literal["applied", "already", "skipped"]


class PatchError(RuntimeError):
    """A patch does not fit the installed stock code. Nothing of the same call was applied."""


@dataclass(frozen=True)
class Patch:
    """One replacement in a stock package.

    id: short name, unique in its register.
    target: ``"package.module:Name"`` or ``"package.module:Class.attribute"``; found when applied.
    window: releases on which the replacement is right.
    why: what is wrong or missing upstream, and how this cures it.
    upstream: link to the discussion or change upstream.
    remove_when: the condition, as a sentence, under which this record is deleted.
    replace: takes the original and returns the replacement. A function, staticmethod or classmethod arrives
        as the plain function and is put back as the same kind; a property or a constant arrives as it is.
    expects: parameter names the target must have, in order; None for a property or a constant.
    obsolete: says whether `remove_when` has come true on the installed release; evaluated by tests only.
    optional_outside: outside `window` the patch is skipped instead of refused, because those releases need
        nothing or another record covers them.
    """

    id: str
    target: str
    window: Window
    why: str
    upstream: str
    remove_when: str
    replace: Callable[[Any], Any]
    expects: tuple[str, ...] | None = None
    obsolete: Callable[[], bool] | None = None
    optional_outside: bool = False

    def __post_init__(self) -> None:
        Target.parse(self.target)
        for field in ("id", "why", "remove_when"):
            if not getattr(self, field).strip():
                raise ValueError(f"patch {self.id!r} on {self.target}: {field} is empty; write it out")
        if not self.upstream.startswith("https://"):
            raise ValueError(
                f"patch {self.id!r}: upstream={self.upstream!r} is no link; give the https:// address of the "
                "issue, change or source line it is about"
            )

    def concerned(self) -> bool:
        """Whether the installed release is in this patch's window; False without any."""
        seen = installed(*self.window.distributions)
        return seen is not None and self.window.contains(seen[1])


@dataclass(frozen=True)
class Row:
    """What became of one patch."""

    id: str
    status: Status
    reason: str
    target: str


@dataclass(frozen=True)
class Report:
    """What became of a plugin's patches in this process."""

    plugin: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        rows = ", ".join(
            f"{row.id} {row.status}" + (f" ({row.reason})" if row.status == "skipped" else "") for row in self.rows
        )
        return f"{self.plugin}: {rows or 'no patches'}"


@dataclass(frozen=True)
class _Change:
    target: Target
    before: Any
    after: Any


class Register:
    """The ordered patches of one plugin.

    plugin: import name; by convention the register is ``<plugin>.patches:REGISTER``.
    window: releases the plugin as a whole was tested on, checked before any patch; None if every patch
        states all that is needed.
    Raises ValueError if two patches share an id.
    """

    def __init__(self, plugin: str, patches: Sequence[Patch], window: Window | None = None) -> None:
        self.plugin = plugin
        self.patches = tuple(patches)
        self.window = window
        self._changes: dict[str, _Change] = {}
        self._rows: dict[str, Row] = {}
        ids = [patch.id for patch in self.patches]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"{self.file}: id {twice[0]!r} is used twice; ids are unique in a register")

    @property
    def file(self) -> str:
        """Where this register is written down, relative to the folder that holds the plugin."""
        return f"{self.plugin.replace('.', '/')}/patches.py"

    def apply(self, ids: Iterable[str] | None = None) -> Report:
        """Apply all patches, or those named, in the register's order; harmless when repeated.

        Raises `UnsupportedVersion` (`NotInstalled`) outside a window and `PatchError` when a target is gone
        or has changed; then nothing of this call stays applied.
        """
        chosen = self._chosen(ids)
        if self.window is not None:
            self.window.require()
        rows: list[Row] = []
        planned: dict[str, _Change] = {}
        for patch in chosen:
            if (row := self._settled(patch)) is not None:
                rows.append(row)
                continue
            change = self._plan(patch)
            for other, earlier in planned.items():
                if earlier.target.same_place(change.target):
                    raise self._error(patch, change.target, f"is also replaced by {other!r}; make them one record")
            planned[patch.id] = change
            rows.append(Row(patch.id, "applied", "", str(change.target)))
        self._put(planned)
        news = {row.id: row for row in rows if row.status != "already" and self._rows.get(row.id) != row}
        self._rows.update(news)
        _registers[self.plugin] = self
        if news:
            _log.info("%s", Report(self.plugin, tuple(rows)))
        return Report(self.plugin, tuple(rows))

    def report(self) -> Report:
        """Every patch of the register with what became of it so far in this process."""
        return Report(
            self.plugin,
            tuple(
                self._rows.get(patch.id, Row(patch.id, "skipped", "not asked for", patch.target))
                for patch in self.patches
            ),
        )

    def revert(self) -> None:
        """Put every original back, newest first. For tests.

        Raises `PatchError` if something else has replaced a target since.
        """
        for key, change in reversed(list(self._changes.items())):
            if change.target.read() is not change.after:
                raise PatchError(f"{self.plugin}: {change.target} was replaced again since {key!r} was applied")
            change.target.write(change.before)
            del self._changes[key]
        self._rows.clear()
        _registers.pop(self.plugin, None)

    def obsolete(self) -> tuple[str, ...]:
        """Ids of patches whose removal condition holds on the installed release: delete those records.

        Only of patches for that release: one outside a patch's window, or none at all, says nothing about it.
        """
        return tuple(
            patch.id for patch in self.patches if patch.obsolete is not None and patch.concerned() and patch.obsolete()
        )

    def _chosen(self, ids: Iterable[str] | None) -> list[Patch]:
        if ids is None:
            return list(self.patches)
        wanted = set(ids)
        known = [patch.id for patch in self.patches]
        if unknown := sorted(wanted.difference(known)):
            raise ValueError(f"{self.plugin} has no patch {unknown[0]!r}; it has {', '.join(known) or 'none'}")
        return [patch for patch in self.patches if patch.id in wanted]

    def _settled(self, patch: Patch) -> Row | None:
        """A row if there is nothing to do: outside by design, or done before."""
        if patch.optional_outside:
            name, version = patch.window.found()
            if not patch.window.contains(version):
                reason = f"{name}=={version} is outside {patch.window.specifier}"
                return Row(patch.id, "skipped", reason, patch.target)
        else:
            patch.window.require()
        change = self._changes.get(patch.id)
        if change is not None:
            if change.target.carries(change.after):
                return Row(patch.id, "already", "", str(change.target))
            raise self._error(patch, change.target, "was replaced by other code after this patch was applied")
        return None

    def _plan(self, patch: Patch) -> _Change:
        try:
            target = Target.parse(patch.target).found()
            target.check_parameters(patch.expects)
            before = target.read()
            after = target.wrapped(patch.replace, mark=f"{self.plugin}:{patch.id}")
        except TargetError as error:
            raise self._error(patch, patch.target, str(error)) from error
        return _Change(target, before, after)

    def _put(self, planned: dict[str, _Change]) -> None:
        done: list[_Change] = []
        try:
            for change in planned.values():
                change.target.write(change.after)
                done.append(change)
        except BaseException:
            for change in reversed(done):
                change.target.write(change.before)
            raise
        self._changes.update(planned)

    def _error(self, patch: Patch, target: Target | str, what: str) -> PatchError:
        name, version = patch.window.found()
        return PatchError(
            f"patch {patch.id!r} of {self.plugin}: {target} {what}. Found {name}=={version}; the patch was "
            f"written for {name}{patch.window.specifier}. Nothing was applied. Compare the stock code with "
            f"the record in {self.file} and correct the record or narrow its window."
        )


def reports() -> tuple[Report, ...]:
    """One report for each register applied in this process, in the order of first use."""
    return tuple(register.report() for register in _registers.values())
