"""Every environment variable of this plugin, read strictly and in one place, once in the life of each process.

Defaults leave stock vLLM and Dynamo as they are.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = ["PREFIX", "VARIABLES", "Mode", "Reader", "Settings"]

PREFIX = "DYNAMO_STRUCTURAL_TAGS"
_ANY = "DYNAMO_STRUCTURAL"  # also of the misspelt ones

_E = TypeVar("_E", bound=enum.StrEnum)
_N = TypeVar("_N", int, float)


class Mode(enum.StrEnum):
    """What the hooks do with a structural tag."""

    OFF = "off"
    REPORT = "report"
    ENFORCE = "enforce"


class Reader(enum.StrEnum):
    """Who reads the model's output, and so what a tag must keep out of it."""

    AUTO = "auto"
    OURS = "ours"
    DYNAMO_V1 = "dynamo-v1"
    DYNAMO_V2 = "dynamo-v2"
    VLLM = "vllm"


#: Environment variable -> what it sets, its values, its default: the rows of the table in docs/structural_tags.md.
VARIABLES: dict[str, tuple[str, str, str]] = {
    PREFIX: (
        "tags: left alone; compared and counted only; replaced",
        "off, report, enforce",
        "off",
    ),
    f"{PREFIX}_READER": (
        "whose parser reads the output of the tags that the worker replaces",
        "auto, ours, dynamo-v1, dynamo-v2, vllm",
        "auto",
    ),
    f"{PREFIX}_COMPILE_SECONDS": (
        "time for one request's tools; those that are left get the level names",
        "a number above 0, up to 600",
        "10",
    ),
    f"{PREFIX}_CACHE": ("tags, and tools' grammars, kept by each process", "a whole number from 1 to 1000000", "1024"),
}


@dataclass(frozen=True)
class Settings:
    """The settings of one process.

    mode: `Mode.REPORT` logs and counts what `Mode.ENFORCE` would change.
    reader: who reads the output; `Reader.AUTO` finds out, see `worker`.
    compile_seconds: time for the tools of one request, seconds.
    cache: entries in the caches of tags and of compiled tools.
    """

    mode: Mode = Mode.OFF
    reader: Reader = Reader.AUTO
    compile_seconds: float = 10.0
    cache: int = 1024

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings in the environment; unset and empty variables keep their defaults.

        Raises:
            ValueError: a value that is not allowed, or a variable ``DYNAMO_STRUCTURAL...`` that does not exist.
        """
        given = {name: value for name, value in environment.items() if name.startswith(_ANY) and value}
        if unknown := sorted(set(given) - set(VARIABLES)):
            raise ValueError(
                f"{unknown[0]}={given[unknown[0]]!r} is no setting of dynamo_structural_tags and would be silently "
                f"ignored. Allowed are {', '.join(VARIABLES)}; correct or unset it."
            )
        return cls(
            mode=_choice(given, PREFIX, Mode, cls.mode),
            reader=_choice(given, f"{PREFIX}_READER", Reader, cls.reader),
            compile_seconds=_number(given, f"{PREFIX}_COMPILE_SECONDS", float, 1e-6, 600, cls.compile_seconds),
            cache=_number(given, f"{PREFIX}_CACHE", int, 1, 1_000_000, cls.cache),
        )

    def reporting(self) -> Settings:
        """The same settings, but changing nothing: for stock releases that nobody has tested."""
        return replace(self, mode=Mode.OFF if self.mode is Mode.OFF else Mode.REPORT)


def _choice(given: Mapping[str, str], name: str, kind: type[_E], default: _E) -> _E:
    try:
        return kind(given[name]) if name in given else default
    except ValueError:
        raise _refusal(given, name) from None


def _number(given: Mapping[str, str], name: str, kind: type[_N], least: float, most: float, default: _N) -> _N:
    if name not in given:
        return default
    try:
        value = kind(given[name])
    except ValueError:
        raise _refusal(given, name) from None
    if not least <= value <= most:
        raise _refusal(given, name)
    return value


def _refusal(given: Mapping[str, str], name: str) -> ValueError:
    about, values, default = VARIABLES[name]
    return ValueError(
        f"{name}={given[name]!r} is not usable: it sets {about}. Allowed: {values}. "
        f"Correct it, or unset it for {default}."
    )
