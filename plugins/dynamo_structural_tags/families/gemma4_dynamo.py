"""Gemma 4 for Dynamo's v1 parser, which takes values for what they are, whatever the schema says.

It empties all arguments of a call for one key of other characters than ASCII's letters, digits and `_-.`, for a number
with an exponent, and for an integer that 64 bits do not hold.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from ..ebnf.rules import quote
from ..schema.charsets import charset
from .gemma4 import GEMMA4, GemmaValues

__all__ = ["GEMMA4_DYNAMO_V1"]

_KEY_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."


class _DynamoValues(GemmaValues):
    key_chars = charset((ord(char), ord(char)) for char in _KEY_CHARS)
    types_kept = True
    long_integers = False
    exponents = False

    def literal(self, value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            # The schema's reader lets only such through as 64 bits hold, if they are whole.
            return quote(str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f"))
        return super().literal(value)


GEMMA4_DYNAMO_V1 = replace(
    GEMMA4, name="gemma4-dynamo-v1", source=f"{GEMMA4.source}; read by Dynamo's v1 parser", values=_DynamoValues
)
