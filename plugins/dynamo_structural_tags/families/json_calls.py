"""Calls whose arguments are one JSON object, as several families write them around their own markers."""

from __future__ import annotations

from ..ebnf.json_values import JsonValues
from ..ebnf.markers import Markers
from ..ebnf.rules import Rules
from .family import Call

__all__ = ["IN_JSON", "json_arguments"]

#: What a name cannot contain where readers take it from a JSON string without decoding it.
IN_JSON = ('"', "\\", *map(chr, range(0x20)))


def json_arguments(rules: Rules, call: Call, markers: tuple[str, ...], blank: str | None = None) -> str:
    """A rule for the arguments of a call.

    markers: what their text cannot contain but escaped; each begins with its only "<".
    blank: an expression for what may stand between two parts; None for at most one blank or line end.
    Raises ValueError if no arguments satisfy the schema.
    """
    shapes = call.shapes
    if not shapes.definitions.has_values(shapes.shape):
        raise ValueError("no arguments satisfy the schema")
    options = {} if blank is None else {"blank": blank}
    return JsonValues(rules, Markers(markers), shapes, call.strict, **options).value(shapes.shape)
