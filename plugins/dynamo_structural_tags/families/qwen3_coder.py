"""Qwen3-Coder and Qwen3.5: one element per call, one element per argument, strings as they are.

A line end stands before and behind each value, which the reader takes off again. Dynamo's readers end a call at the
first text that ends one; v1 reads the arguments as in `dynamo_types`, v2 as vLLM, but for undeclared ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..ebnf.rules import Rules, quote
from ..ebnf.tagged import PairFormat
from .dynamo_tagged import dynamo_arguments
from .family import Call, Family, StockForm
from .vllm_tagged import spaced, vllm_arguments

__all__ = ["QWEN3_CODER", "QWEN3_CODER_DYNAMO_V1", "QWEN3_CODER_DYNAMO_V2"]

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_KEY, _VALUE_END = "<parameter=", "</parameter>"
_MARKERS = (*spaced("<", "/", "parameter", ">"), *spaced("<", "parameter", "="), _FUNCTION_END, _FUNCTION)


@dataclass(frozen=True, slots=True)
class _Qwen(Family):
    value_markers: tuple[str, ...] = _MARKERS
    arguments: Callable[[Rules, Call, PairFormat], str] = vllm_arguments

    def call(self, rules: Rules, call: Call) -> str:
        form = PairFormat((_KEY, ">"), ("\n", f"\n{_VALUE_END}\n"), ("<", ">"), self.value_markers)
        begin, end = f"\n{_FUNCTION}{call.name}>\n", f"{_FUNCTION_END}\n{_CALL_END}"
        return f"{quote(begin)} {self.arguments(rules, call, form)} {quote(end)}"

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
QWEN3_CODER_DYNAMO_V2 = replace(
    QWEN3_CODER,
    name="qwen3_coder-dynamo-v2",
    stock=None,
    value_markers=(_VALUE_END, _FUNCTION_END, _CALL_END),
    arguments=partial(vllm_arguments, undeclared=frozenset(("string", "null"))),
)
QWEN3_CODER_DYNAMO_V1 = replace(QWEN3_CODER_DYNAMO_V2, name="qwen3_coder-dynamo-v1", arguments=dynamo_arguments)
