"""Families that write all calls of a turn as one JSON array of objects with a name and arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..ebnf.rules import Rules, quote
from .family import Call, Family
from .json_calls import IN_JSON, json_arguments

__all__ = ["JsonListFamily"]


@dataclass(frozen=True, slots=True)
class JsonListFamily(Family):
    """begin: an expression for what stands between `trigger` and the first call; between, end: texts.

    markers: what no string contains but escaped.
    """

    name_markers: tuple[str, ...] = IN_JSON
    begin: str = '"["'
    between: str = ", "
    end: str = "]"
    markers: tuple[str, ...] = ()

    def call(self, rules: Rules, call: Call) -> str:
        begin = '{"name": ' + json.dumps(call.name, ensure_ascii=False) + ', "arguments": '
        return f"{quote(begin)} {json_arguments(rules, call, self.markers)} {quote('}')}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        more = f"({quote(self.between)} {call})*" if parallel else ""
        return f"{self.begin} {call} {more} {quote(self.end)}", False
