"""Qwen3-Coder and Qwen3.5: one element per call, one element per argument, strings as they are.

A line end stands before and behind each value, which the reader takes off again. Dynamo's reader ends a call at the
first text that ends one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ebnf.rules import Rules, quote
from ..ebnf.tagged import PairFormat
from .family import Call, Family, StockForm
from .vllm_tagged import spaced, vllm_arguments

__all__ = ["QWEN3_CODER", "QWEN3_CODER_DYNAMO"]

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_KEY, _VALUE_END = "<parameter=", "</parameter>"
_MARKERS = (*spaced("<", "/", "parameter", ">"), *spaced("<", "parameter", "="), _FUNCTION_END, _FUNCTION)


@dataclass(frozen=True, slots=True)
class _Qwen(Family):
    value_markers: tuple[str, ...] = _MARKERS

    def call(self, rules: Rules, call: Call) -> str:
        form = PairFormat((_KEY, ">"), ("\n", f"\n{_VALUE_END}\n"), ("<", ">"), self.value_markers)
        begin, end = f"\n{_FUNCTION}{call.name}>\n", f"{_FUNCTION_END}\n{_CALL_END}"
        return f"{quote(begin)} {vllm_arguments(rules, call, form)} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return (f'{call} ("\\n"? {quote(_CALL)} {call})*' if parallel else call), False


QWEN3_CODER = _Qwen(
    "qwen3_coder",
    "chat templates of Qwen3-Coder and Qwen3.5",
    _CALL,
    (_CALL_END, _FUNCTION, _FUNCTION_END, _KEY, _VALUE_END, "<think>", "</think>"),
    name_markers=("<", ">", "\n"),
    lead="\n\n",
    stock=StockForm(f"{_CALL}\n{_FUNCTION}", ">\n", f"\n{_FUNCTION_END}\n{_CALL_END}", "qwen_xml"),
)
QWEN3_CODER_DYNAMO = replace(QWEN3_CODER, name="qwen3_coder-dynamo", stock=None, value_markers=(*_MARKERS, _CALL_END))
