"""The nodes of structural tags, opened strictly: what is not understood makes the whole tag unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Unknown", "alternatives", "named", "opened"]

#: Fields of each format that are understood; a tag with others may mean something else.
_FIELDS = {
    "any_text": {"excludes"},
    "const_string": {"value"},
    "json_schema": {"json_schema", "style", "any_order", "max_whitespace_cnt"},
    "optional": {"content"},
    "or": {"elements"},
    "regex": {"pattern"},
    "sequence": {"elements"},
    "star": {"content"},
    "tag": {"begin", "content", "end"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
    "triggered_tags": {"triggers", "tags", "excludes", "at_least_one", "stop_after_first"},
}
_NEEDED = {
    "const_string": {"value"},
    "json_schema": {"json_schema"},
    "optional": {"content"},
    "or": {"elements"},
    "regex": {"pattern"},
    "sequence": {"elements"},
    "star": {"content"},
    "tag": {"begin", "content", "end"},
    "tags_with_separator": {"tags"},
    "triggered_tags": {"tags", "triggers"},
}
_TEXTS = {"begin", "end", "value", "pattern", "separator", "style"}
_LISTS = {"elements", "tags", "triggers"}


class Unknown(Exception):
    """Not one of the known shapes."""


def opened(node: Any) -> tuple[str, dict[str, Any]]:
    """Kind and fields of a format, those without a value left out, as pydantic writes them.

    Raises:
        Unknown: another kind, or a field that means something unknown, or has a value of another type.
    """
    if not isinstance(node, Mapping):
        raise Unknown
    kind = node.get("type")
    fields = {key: value for key, value in node.items() if key != "type" and value not in (None, [], ())}
    if kind not in _FIELDS or not set(fields) <= _FIELDS[kind]:
        raise Unknown
    if not _NEEDED.get(kind, set()) <= set(fields):
        raise Unknown
    if not all(isinstance(fields[key], str) for key in _TEXTS & set(fields)):
        raise Unknown
    if not all(isinstance(fields[key], list) for key in _LISTS & set(fields)):
        raise Unknown
    return kind, fields


def alternatives(node: Any) -> list[Any]:
    """The choices of an ``or``; any other format is its only choice."""
    kind, fields = opened(node)
    if kind != "or":
        return [node]
    if not isinstance(fields["elements"], list) or not fields["elements"]:
        raise Unknown
    return fields["elements"]


def named(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool choice that names an OpenAI tool."""
    return {"type": "function", "function": {"name": tool["function"]["name"]}}
