"""Every environment variable of this plugin, read strictly and in one place, once in the life of each process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["PREFIX", "VARIABLES", "Settings", "byte_count"]

PREFIX = "RL_CAPTURE"

_N = TypeVar("_N", int, float)

#: Environment variable -> what it sets, its values, its default: the rows of the table in docs/rl_capture.md.
VARIABLES: dict[str, tuple[str, str, str]] = {
    PREFIX: ("whether requests are recorded", "off, on", "off"),
    f"{PREFIX}_DIR": ("folder of the records, made if it is not there", "an absolute path", "none: needed with on"),
    f"{PREFIX}_SAMPLE": ("share of sessions that are recorded", "a number above 0, up to 1", "1"),
    f"{PREFIX}_REDACT": (
        "what is masked in ids and text: known forms of secrets; those and the expressions in a file; nothing",
        "secrets, none, or the absolute path of a file",
        "secrets",
    ),
    f"{PREFIX}_TEXT": ("whether decoded text and tools' names are stored beside the ids", "off, on", "off"),
    f"{PREFIX}_PROMPT_TOKENS": (
        "longest prompt whose ids are stored; of a longer one length and hash are, and of every one with 0",
        "a whole number",
        "262144",
    ),
    f"{PREFIX}_OUTCOMES": ("whether the outcomes of tool calls are told by an installed reader", "auto, off", "auto"),
    f"{PREFIX}_WEIGHTS": ("what the weights at the start are called", "text", "the model's path and revision"),
    f"{PREFIX}_FILE_BYTES": ("size at which a file is closed and the next one begun", "bytes, or 64MiB", "64MiB"),
    f"{PREFIX}_TOTAL_BYTES": ("size of all records of the folder", "bytes, or 10GiB", "10GiB"),
    f"{PREFIX}_FULL": ("at that size: no more records; the oldest closed files go", "stop, drop-oldest", "stop"),
    f"{PREFIX}_QUEUE_TOKENS": (
        "tokens that may wait to be written; a request that finds more waiting is not recorded",
        "a whole number above 0",
        "4000000",
    ),
}

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class Settings:
    """The settings of one process that records.

    folder: of the records. sample: share of sessions. redact: "secrets", "none" or the path of a file of expressions.
    text: store it. prompt_tokens: longest prompt stored. outcomes: ask an installed reader. weights: name of the
    weights at the start, None for the model's. file_bytes, total_bytes: limits. drop_oldest: what a full folder does.
    queue_tokens: bound of what waits.
    """

    folder: Path
    sample: float = 1.0
    redact: str = "secrets"
    text: bool = False
    prompt_tokens: int = 262_144
    outcomes: bool = True
    weights: str | None = None
    file_bytes: int = 64 << 20
    total_bytes: int = 10 << 30
    drop_oldest: bool = False
    queue_tokens: int = 4_000_000

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings | None:
        """The settings in the environment, None with capture off. Unset and empty variables keep their defaults.

        Raises ValueError for a value that is not allowed, a variable ``RL_CAPTURE...`` that does not exist, and a
        setting without ``RL_CAPTURE=on``, which would do nothing.
        """
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
        if unknown := sorted(set(given) - set(VARIABLES)):
            raise ValueError(
                f"{unknown[0]}={given[unknown[0]]!r} is no setting of rl_capture and would be silently ignored. "
                f"Allowed are {', '.join(VARIABLES)}; correct or unset it."
            )
        if _choice(given, PREFIX, "off", "on") != "on":
            if extra := sorted(set(given) - {PREFIX}):
                raise ValueError(
                    f"{extra[0]}={given[extra[0]]!r} has no effect, because {PREFIX} is off. Set {PREFIX}=on to record "
                    f"requests, or unset {extra[0]}."
                )
            return None
        settings = cls(
            folder=_folder(given),
            sample=_number(given, f"{PREFIX}_SAMPLE", float, cls.sample),
            redact=given.get(f"{PREFIX}_REDACT", cls.redact),
            text=_choice(given, f"{PREFIX}_TEXT", "off", "on") == "on",
            prompt_tokens=_number(given, f"{PREFIX}_PROMPT_TOKENS", int, cls.prompt_tokens),
            outcomes=_choice(given, f"{PREFIX}_OUTCOMES", "auto", "off") == "auto",
            weights=given.get(f"{PREFIX}_WEIGHTS"),
            file_bytes=_bytes(given, f"{PREFIX}_FILE_BYTES", cls.file_bytes),
            total_bytes=_bytes(given, f"{PREFIX}_TOTAL_BYTES", cls.total_bytes),
            drop_oldest=_choice(given, f"{PREFIX}_FULL", "stop", "drop-oldest") == "drop-oldest",
            queue_tokens=_number(given, f"{PREFIX}_QUEUE_TOKENS", int, cls.queue_tokens),
        )
        settings._check(given)
        return settings

    def _check(self, given: Mapping[str, str]) -> None:
        if not 0 < self.sample <= 1:
            raise _refusal(given, f"{PREFIX}_SAMPLE")
        if self.prompt_tokens < 0:
            raise _refusal(given, f"{PREFIX}_PROMPT_TOKENS")
        if self.queue_tokens < 1:
            raise _refusal(given, f"{PREFIX}_QUEUE_TOKENS")
        if self.redact not in ("secrets", "none") and not Path(self.redact).is_absolute():
            raise _refusal(given, f"{PREFIX}_REDACT")
        if self.total_bytes < 2 * self.file_bytes:
            raise ValueError(
                f"{PREFIX}_TOTAL_BYTES={self.total_bytes} is less than two files of {PREFIX}_FILE_BYTES="
                f"{self.file_bytes}: the folder would be full before a file is closed, and none could be dropped. "
                "Give at least twice as much."
            )


def byte_count(text: str) -> int:
    """Bytes of ``64MiB`` or ``1000``; raises ValueError for anything else, and for 0."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2] not in _UNITS or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size; give bytes, or a number of {', '.join(filter(None, _UNITS))}")
    return int(found[1]) * _UNITS[found[2]]


def _folder(given: Mapping[str, str]) -> Path:
    name = f"{PREFIX}_DIR"
    if name not in given:
        raise ValueError(f"{PREFIX}=on needs {name}, the folder for the records. Set it to an absolute path.")
    folder = Path(given[name])
    if not folder.is_absolute():
        raise _refusal(given, name)
    return folder


def _choice(given: Mapping[str, str], name: str, default: str, other: str) -> str:
    value = given.get(name, default)
    if value not in (default, other):
        raise _refusal(given, name)
    return value


def _number(given: Mapping[str, str], name: str, kind: type[_N], default: _N) -> _N:
    try:
        return kind(given[name]) if name in given else default
    except ValueError:
        raise _refusal(given, name) from None


def _bytes(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        return byte_count(given[name]) if name in given else default
    except ValueError:
        raise _refusal(given, name) from None


def _refusal(given: Mapping[str, str], name: str) -> ValueError:
    about, values, default = VARIABLES[name]
    return ValueError(
        f"{name}={given[name]!r} is not usable: it sets {about}. Allowed: {values}. "
        f"Correct it, or unset it for {default}."
    )
