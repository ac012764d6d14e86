"""Tool calls of earlier turns as a chat template gets them: arguments as values, numbers as the model wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from dynamo_structural_tags.frontend.refusal import RefusedRequest

__all__ = ["with_parsed_arguments"]

_SMALL = re.compile(r"(-?)(\d)(?:\.(\d+))?e-0?(\d+)$")


class _Number(str):
    """The text of a JSON number."""


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, as they come."""


def with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a message whose tool calls have objects for their arguments' JSON text.

    Raises `RefusedRequest` if the text is no JSON object.
    """
    changed = dict(message)
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_call(call) for call in calls]
    if isinstance(message.get("function_call"), Mapping):
        changed["function_call"] = _function(message["function_call"])
    return changed


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    return {**call, "function": _function(call["function"])}


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    text = function.get("arguments")
    if not isinstance(text, str):
        return dict(function)
    try:
        parsed = _decode(text) if text else _Pairs()
    except ValueError as error:
        raise RefusedRequest(
            f"arguments={text[:80]!r} of an earlier call of {function.get('name')!r} are no JSON: {error}. Send back "
            "what the model wrote."
        ) from error
    if not isinstance(parsed, _Pairs):
        raise RefusedRequest(
            f"arguments={text[:80]!r} of an earlier call of {function.get('name')!r} are no JSON object. Send back "
            "what the model wrote."
        )
    # Of an argument that comes twice Dynamo shows the first one; inside values the last one counts, as in all JSON.
    arguments = {key: _argument(value) for key, value in reversed(parsed)}
    return {**function, "arguments": {key: arguments[key] for key, _ in parsed}}


def _decode(text: str) -> Any:
    return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_json, object_pairs_hook=_Pairs)


def _argument(value: Any) -> Any:
    """An argument's value. Like Dynamo, a number keeps its text if printing it anew would change it."""
    if not isinstance(value, _Number):
        return _value(value)
    number = _value(value)
    if isinstance(number, int):
        return number if str(number) == value else str(value)
    return number if _in_rust(number) == value else str(value)


def _value(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _value(inner) for key, inner in value}
    if isinstance(value, list):
        return [_value(inner) for inner in value]
    if not isinstance(value, _Number):
        return value
    if value.lstrip("-").isdigit() and value != "-0" and -(1 << 63) <= int(value) < 1 << 64:
        return int(value)
    return float(value)


def _in_rust(number: float) -> str:
    """The number as serde_json prints it: as Python does but for small ones (1e-6, 0.00001)."""
    text = repr(number)
    if small := _SMALL.match(text):
        sign, first, rest, exponent = small.groups()
        if int(exponent) == 5:
            return f"{sign}0.0000{first}{rest or ''}"
        return f"{sign}{first}{'.' + rest if rest else ''}e-{exponent}"
    return text


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
