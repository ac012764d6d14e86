"""Jamba 1.5 and later: an array of calls in one element, a call a line.

``<tool_calls>[\\n    {"name": NAME, "arguments": {...}}\\n]</tool_calls>``. The reader drops what stands behind it.
"""

from __future__ import annotations

from .json_lists import JsonListFamily

__all__ = ["JAMBA"]

_CALLS, _CALLS_END = "<tool_calls>", "</tool_calls>"

JAMBA = JsonListFamily(
    "jamba",
    "chat template of Jamba 1.5",
    _CALLS,
    (_CALLS_END,),
    begin='"[\\n    "',
    between=",\n    ",
    end=f"\n]{_CALLS_END}",
    markers=(_CALLS, _CALLS_END),
)
