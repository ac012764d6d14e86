"""Llama Nemotron (Nano 8B, Super 49B, Ultra 253B): an array of calls in one element.

``<TOOLCALL>[{"name": NAME, "arguments": {...}}]</TOOLCALL>``.
"""

from __future__ import annotations

from .json_lists import JsonListFamily

__all__ = ["NEMOTRON_DECI"]

_CALLS, _CALLS_END = "<TOOLCALL>", "</TOOLCALL>"

NEMOTRON_DECI = JsonListFamily(
    "nemotron_deci",
    "chat templates of Llama 3.1 and 3.3 Nemotron",
    _CALLS,
    (_CALLS_END, "<think>", "</think>"),
    end=f"]{_CALLS_END}",
    markers=(_CALLS, _CALLS_END),
)
