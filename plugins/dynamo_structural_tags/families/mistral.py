"""Mistral models with tokenizers before version 11 (7B v0.3, Nemo, Large 2407, Small 2409): an array of calls.

``[TOOL_CALLS] [{"name": NAME, "arguments": {...}}]``, with or without the blank. The reader takes what stands behind
the array for nothing, and fails on a second marker in the output. Dynamo's ends the array at ``[/TOOL_CALLS]``.
"""

from __future__ import annotations

from .json_lists import JsonListFamily

__all__ = ["MISTRAL", "TOOL_CALLS"]

TOOL_CALLS = "[TOOL_CALLS]"

MISTRAL = JsonListFamily(
    "mistral",
    "chat templates of Mistral 7B v0.3 and Mistral Nemo",
    TOOL_CALLS,
    ("[TOOL_RESULTS]",),
    begin='" "? "["',
    markers=(TOOL_CALLS, "[/TOOL_CALLS]"),
)
