"""Shell scripts from argument lists: the one place that quotes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

__all__ = ["REFERENCES", "quote", "script"]

#: Variables that a script may refer to, because only the place where it runs knows them. ``${NAME}`` in a value.
REFERENCES = ("NODE_ADDRESS", "GROUP_ADDRESS", "FRONT_ADDRESS", "RUN_DIR")

_REFERENCE = re.compile(r"(\$\{(?:" + "|".join(REFERENCES) + r")\})")


def quote(value: str) -> str:
    """`value` as one word of shell, with nothing expanded but `REFERENCES`."""
    parts = _REFERENCE.split(value)
    if len(parts) == 1:
        return shlex.quote(value)
    return "".join(f'"{part}"' if _REFERENCE.fullmatch(part) else shlex.quote(part) for part in parts if part)


def script(about: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A script that becomes the process `argv` with `env` on top of its own environment.

    about: one line of what it is. An option and its value share a line.
    """
    used = {found[2:-1] for text in (*argv, *env.values()) for found in _REFERENCE.findall(text)}
    lines = ["#!/usr/bin/env bash", f"# {about}", "set -euo pipefail"]
    lines += [f': "${{{name}:?is set by what starts this script}}"' for name in REFERENCES if name in used]
    lines += [f"export {key}={quote(value)}" for key, value in sorted(env.items())]
    words = [quote(word) for word in argv]
    command = [words[0]]
    for word, text in zip(words[1:], argv[1:], strict=True):
        if text.startswith("-") or command[-1].count(" ") > 2:
            command.append(word)
        else:
            command[-1] += f" {word}"
    return "\n".join([*lines, "exec " + " \\\n    ".join(command)]) + "\n"
