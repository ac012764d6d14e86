"""Mistral models with tokenizers of version 11 and later (Small 3.2, Devstral, Magistral, Ministral 3): marker, name
and arguments of each call.

``[TOOL_CALLS]NAME[ARGS]{...}``. The reader drops what stands behind a call, and looks at the types of the values again:
see `vllm_types`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ebnf.rules import Rules, quote
from .family import Call, Family
from .json_calls import json_arguments
from .mistral import TOOL_CALLS
from .vllm_types import note_misreadings

__all__ = ["MISTRAL_V11"]

_ARGS, _THINK, _THINK_END = "[ARGS]", "[THINK]", "[/THINK]"


@dataclass(frozen=True, slots=True)
class _Mistral(Family):
    def call(self, rules: Rules, call: Call) -> str:
        note_misreadings(call.shapes, call.parameters)
        return f"{quote(call.name + _ARGS)} {json_arguments(rules, call, (TOOL_CALLS, _ARGS))}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return (f"{call} ({quote(TOOL_CALLS)} {call})*" if parallel else call), False


MISTRAL_V11 = _Mistral(
    "mistral_v11",
    "chat templates of Mistral Small 3.2, Devstral and Magistral",
    TOOL_CALLS,
    (_ARGS, _THINK, _THINK_END, "[TOOL_RESULTS]"),
    think_end=_THINK_END,
    think=_THINK,
    name_markers=("{", "\n"),
)
