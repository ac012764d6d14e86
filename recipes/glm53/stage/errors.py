"""Why a topic cannot be staged."""

from __future__ import annotations

__all__ = ["Drifted", "StageError"]


class StageError(RuntimeError):
    """A topic cannot be staged on this tree; nothing was written."""

    def __init__(self, seen: str, why: str, allowed: str, fix: str) -> None:
        super().__init__(f"{seen}: {why}; allowed is {allowed}. {fix}.")


class Drifted(StageError):
    """An anchor is not where a topic expects it: upstream has changed the code that the topic edits.

    file: path in the tree. anchor: what was looked for. lines: where it was found, none or several of them.
    """

    def __init__(self, file: str, anchor: str, lines: list[int], expected: int = 1) -> None:
        lines = sorted(lines)
        self.file, self.anchor, self.lines = file, anchor, lines
        found = f"{len(lines)} times (line {', '.join(map(str, lines))})" if lines else "nowhere"
        super().__init__(
            f"{file}: {anchor} found {found}",
            "the edit would go to the wrong place",
            f"exactly {expected}",
            "Upstream has moved or changed it: read that file again and correct the topic's anchor",
        )
