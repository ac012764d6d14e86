"""MiniMax M2: all calls in one section, one element per call and per argument, strings as they are.

Dynamo's reader, v1, ends the section at the first text that ends one, and reads the arguments as in `dynamo_types`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ebnf.rules import Rules, quote
from ..ebnf.tagged import PairFormat
from .dynamo_tagged import dynamo_arguments
from .family import Call, Family
from .vllm_tagged import spaced, vllm_arguments

__all__ = ["MINIMAX_M2", "MINIMAX_M2_DYNAMO_V1"]

_SECTION, _SECTION_END = "<minimax:tool_call>", "</minimax:tool_call>"
_CALL, _CALL_END = "<invoke name=", "</invoke>"
_KEY, _VALUE_END = "<parameter name=", "</parameter>"
_MARKERS = (*spaced("<", "/", "parameter", ">"), *spaced("<", "parameter name", "="), _CALL_END, _SECTION_END)


@dataclass(frozen=True, slots=True)
class _MiniMax(Family):
    value_markers: tuple[str, ...] = _MARKERS
    arguments: Callable[[Rules, Call, PairFormat], str] = vllm_arguments

    def call(self, rules: Rules, call: Call) -> str:
        form = PairFormat((f'{_KEY}"', '">'), ("", f"{_VALUE_END}\n"), ("<", ">", '"', "'"), self.value_markers)
        begin, end = f'{_CALL}"{call.name}">\n', f"{_CALL_END}\n"
        return f"{quote(begin)} {self.arguments(rules, call, form)} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        more = f"({call})*" if parallel else ""
        return f'"\\n" {call} {more} {quote(_SECTION_END)}', False


MINIMAX_M2 = _MiniMax(
    "minimax_m2",
    "chat template of MiniMax M2",
    _SECTION,
    (_SECTION_END, _CALL, _CALL_END, _KEY, _VALUE_END, "<think>", "</think>"),
    name_markers=("<", ">", '"', "'", "\n"),
)
MINIMAX_M2_DYNAMO_V1 = replace(
    MINIMAX_M2,
    name="minimax_m2-dynamo-v1",
    value_markers=(_VALUE_END, _CALL_END, _SECTION_END),
    arguments=dynamo_arguments,
)
