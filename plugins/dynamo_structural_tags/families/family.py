"""What a family of models writes: one object per family, all the rest is common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..ebnf.rules import Rules
from ..schema import Shapes

__all__ = ["Call", "Family"]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool of a request: its name, its arguments as shapes, and as the request has them."""

    name: str
    shapes: Shapes
    parameters: Any
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Family(ABC):
    """A tool format.

    name: as `build_tag` takes it.
    source: where the format is written down.
    trigger: the text that begins a call, or the section of all calls; free text cannot contain it otherwise.
    text_markers: what free text cannot contain either.
    think_end: what ends the reasoning.
    think: what opens it.
    name_markers: what a tool's name cannot contain either; such a tool is left out.
    """

    name: str
    source: str
    trigger: str
    text_markers: tuple[str, ...]
    think_end: str = "</think>"
    name_markers: tuple[str, ...] = ()
    think: str = "<think>"

    @abstractmethod
    def call(self, rules: Rules, call: Call) -> str:
        """An expression for one call from behind `trigger`; ValueError if its arguments cannot be written."""

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        """From behind `trigger` to the end of the calls of one section, and whether `trigger` may come again.

        call: a rule for any of the calls.
        """
        return call, parallel

    def answer(self, rules: Rules) -> str | None:
        """A rule for an answer without calls, where calls come at the very beginning of an output or not at all.

        None if free text may stand before them.
        """
        return None
