"""What a family of models writes: one object per family, all the rest is common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..ebnf.rules import Rules
from ..schema import Shapes

__all__ = ["Call", "Family", "StockForm"]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool of a request: its name, its arguments as shapes, and as the request has them."""

    name: str
    shapes: Shapes
    parameters: Any
    strict: bool = False


@dataclass(frozen=True, slots=True)
class StockForm:
    """How the structural tags of Dynamo and xgrammar write the calls of a family, see `stock_forms`.

    before, after: what stands around a name at the beginning of a call. end: the end of a call.
    style: xgrammar's style of the arguments. section: what stands around all calls, None for nothing.
    numbered: what stands between the number of a call, which follows `after`, and the arguments; None without numbers.
    separator: what stands between two calls of a section.
    """

    before: str
    after: str
    end: str
    style: str = "json"
    section: tuple[str, str] | None = None
    numbered: str | None = None
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Family(ABC):
    """A tool format.

    name: as `build_tag` takes it.
    source: where the format is written down.
    trigger: the text that begins a call, or the section of all calls; free text cannot contain it otherwise.
    text_markers: what free text cannot contain either.
    think_end: what ends the reasoning.
    think: what opens it.
    lead: what may stand before the first call where no text may.
    stock: how stock tags write its calls, None if there are none or they are not read.
    name_markers: what a tool's name cannot contain either; such a tool is left out.
    """

    name: str
    source: str
    trigger: str
    text_markers: tuple[str, ...]
    think_end: str = "</think>"
    name_markers: tuple[str, ...] = ()
    think: str = "<think>"
    lead: str = "\n"
    stock: StockForm | None = None

    @abstractmethod
    def call(self, rules: Rules, call: Call) -> str:
        """An expression for one call from behind `trigger`; ValueError if its arguments cannot be written."""

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        """From behind `trigger` to the end of the calls of one section, and whether `trigger` may come again.

        call: a rule for any of the calls.
        """
        return call, parallel

    def speaks(self, name: str) -> bool:
        """Whether a call of a tool of this name can be written; `name_markers` apart."""
        return True

    def answer(self, rules: Rules) -> str | None:
        """A rule for an answer without calls, where calls come at the very beginning of an output or not at all.

        None if free text may stand before them.
        """
        return None
