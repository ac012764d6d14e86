"""Our C++ and CUDA sources where upstream keeps such code: includes follow, and upstream's licence header goes on top.

Nothing else of them is changed but words in comments, so what compiles here is what compiles there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from glm53.stage.errors import StageError
from glm53.stage.place import OURS, Place

__all__ = ["SUFFIXES", "moved_native"]

SUFFIXES = (".h", ".cuh", ".cu", ".cpp")

_INCLUDE = re.compile(r'^(\s*#\s*include\s+")([^"]+)(?=")', re.MULTILINE)


def moved_native(text: str, place: Place, files: Mapping[str, str], words: Mapping[str, str], head: str) -> str:
    """The text of a file that goes elsewhere.

    files: paths below upstream's root, by the paths below ours, of all that moves. words: texts to replace. head: the
    licence header as Python comments. Raises `StageError` for an include of a file of ours that stays here, a name of
    one of our packages, and a place that asks for a part of the file.
    """
    if place.without or place.only or place.edits:
        raise StageError(
            f"{place.source} is to move in part",
            "parts are found in Python's syntax tree",
            "whole files of C++ and CUDA",
            "Divide the file, and move the one that upstream needs",
        )
    here, there = posixpath.dirname(place.source), posixpath.dirname(files[place.source])

    def follow(found: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(here, found[2]))
        if wanted not in files:
            raise StageError(
                f'{place.source} has #include "{found[2]}"',
                f"the topic does not move {wanted}",
                "quoted includes of files that are moved with it, and others in angle brackets",
                "Add it to the topic's places",
            )
        return found[1] + posixpath.relpath(files[wanted], there)

    out = _INCLUDE.sub(follow, text)
    for ours, theirs in words.items():
        out = out.replace(ours, theirs)
    if named := re.search(rf"\b({'|'.join(OURS)})\b", out):
        raise StageError(
            f"{place.source} names {named[0]}",
            "upstream has no such package",
            "names that upstream knows",
            "Say it without, or replace it by the topic's `renamed`",
        )
    return _commented(head) + out.rstrip("\n") + "\n"


def _commented(head: str) -> str:
    """Lines of Python comments as a block comment."""
    lines = [line[1:].rstrip() for line in head.splitlines() if line.startswith("#")]
    return "/*\n" + "".join(f" *{line}\n" for line in lines) + " */\n" if lines else ""
