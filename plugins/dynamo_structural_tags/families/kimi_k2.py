"""Kimi K2: all calls in one section, each with an identifier of name and number, its arguments as JSON.

``<|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}<|tool_call_end|>``. The reader drops what stands
behind the section, and looks at the types of the values again: see `vllm_types`. It knows the marks of the section
without the "s", too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ebnf.rules import Rules, quote
from .family import Call, Family, StockForm
from .json_calls import json_arguments
from .vllm_types import note_misreadings

__all__ = ["KIMI_K2"]

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_OTHER_SECTION = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")
_MARKERS = (_SECTION, _SECTION_END, *_OTHER_SECTION, _CALL, _ARGUMENTS, _CALL_END)
_NUMBER = '("0" | [1-9] [0-9]{0,3})'


@dataclass(frozen=True, slots=True)
class _Kimi(Family):
    def call(self, rules: Rules, call: Call) -> str:
        note_misreadings(call.shapes, call.parameters)
        arguments = json_arguments(rules, call, _MARKERS)
        return f"{quote(f'{_CALL}functions.{call.name}:')} {_NUMBER} {quote(_ARGUMENTS)} {arguments} {quote(_CALL_END)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return f"{call} {f'({call})*' if parallel else ''} {quote(_SECTION_END)}", False


KIMI_K2 = _Kimi(
    "kimi_k2",
    "chat template of Kimi K2",
    _SECTION,
    (*_MARKERS[1:], "<think>", "</think>"),
    name_markers=(":", "\n"),
    stock=StockForm(f"{_CALL}functions.", ":", _CALL_END, section=(_SECTION, _SECTION_END), numbered=_ARGUMENTS),
)
