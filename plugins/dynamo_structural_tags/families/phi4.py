"""Phi-4-mini: an array of calls behind a word.

``functools[{"name": NAME, "arguments": {...}}]``. vLLM's reader ends the array at its first bracket, so there no value
may hold one; this form is for readers that read JSON, as Dynamo's, which takes the word alone for the beginning of
calls.
"""

from __future__ import annotations

from .json_lists import JsonListFamily

__all__ = ["PHI4"]

_WORD = "functools"

PHI4 = JsonListFamily("phi4", "chat template of Phi-4-mini", _WORD, (), markers=(_WORD,))
