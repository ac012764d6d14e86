"""Hermes 2 Pro, Qwen 2.5 and Qwen3: one JSON object per call, with its name and its arguments.

``<tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>``. The reader drops what stands between and behind
calls, so nothing but a line end does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..ebnf.rules import Rules, quote
from .family import Call, Family, StockForm
from .json_calls import IN_JSON, json_arguments

__all__ = ["HERMES"]

_CALL, _CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class _Hermes(Family):
    def call(self, rules: Rules, call: Call) -> str:
        begin = '\n{"name": ' + json.dumps(call.name, ensure_ascii=False) + ', "arguments": '
        end = "}\n" + _CALL_END
        return f"{quote(begin)} {json_arguments(rules, call, (_CALL_END,))} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return (f'{call} ("\\n"? {quote(_CALL)} {call})*' if parallel else call), False


HERMES = _Hermes(
    "hermes",
    "chat templates of Hermes 2 Pro, Qwen 2.5 and Qwen3",
    _CALL,
    (_CALL_END, "<think>", "</think>"),
    name_markers=IN_JSON,
    lead="\n\n",
    stock=StockForm(f'{_CALL}\n{{"name": "', '", "arguments": ', f"}}\n{_CALL_END}"),
)
