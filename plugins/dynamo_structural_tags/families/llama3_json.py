"""Llama 3.1 and 3.2: the whole answer is one JSON object with the tool's name and its arguments, or text.

``{"name": NAME, "parameters": {...}}``. The template takes one call a turn. The reader looks for objects in all of an
answer and drops the text around them; where it streams, only an answer that begins with a brace is a call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..ebnf.markers import free_text
from ..ebnf.rules import Rules, quote
from .family import Call, Family
from .json_calls import IN_JSON, json_arguments

__all__ = ["LLAMA3_JSON"]

_BEGIN, _PYTHON = '{"name": "', "<|python_tag|>"
# An object with a name is a call, however that key is spelled.
_NAMED = ('"name"', "\\u00")


@dataclass(frozen=True, slots=True)
class _Llama(Family):
    def call(self, rules: Rules, call: Call) -> str:
        begin = json.dumps(call.name, ensure_ascii=False)[1:] + ', "parameters": '
        return f"{quote(begin)} {json_arguments(rules, call, (_PYTHON,))} {quote('}')}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return call, False

    def answer(self, rules: Rules) -> str | None:
        text = free_text(rules, (*_NAMED, _PYTHON))
        behind = free_text(rules, (*_NAMED, _PYTHON, _PYTHON[1:]))
        return rules.add(f'"" | [^{{<] {text} | "<" {behind}')


LLAMA3_JSON = _Llama(
    "llama3_json",
    "chat templates of Llama 3.1 and 3.2",
    _BEGIN,
    (_PYTHON,),
    name_markers=IN_JSON,
)
