"""How Dynamo 1.6.1 writes the tags of families beside GLM: Hermes, Qwen3-Coder, Kimi K2 and DeepSeek's DSML.

Each is a ``tag`` for each tool in a list that tells the choice. Families that write all calls in one section have that
list inside of the section, and the section inside of another list, or between two texts.
"""

from __future__ import annotations

from typing import Any

from dynamo_structural_tags.families import FAMILIES, StockForm
from dynamo_structural_tags.stock_nodes import Unknown, named, opened

__all__ = ["read_calls"]

_LINES = "\n\n"


def read_calls(node: Any) -> dict[str, Any]:
    """Arguments of `StockTag`.

    Raises:
        Unknown: these are no calls of a known family.
    """
    for family in FAMILIES.values():
        if family.stock is None:
            continue
        try:
            found = _unsectioned(node, family.stock) if family.stock.section is None else _section(node, family.stock)
        except Unknown:
            continue
        return {**found, "family": family.name, "reasoning": None}
    raise Unknown


def _unsectioned(node: Any, form: StockForm) -> dict[str, Any]:
    kind, fields = opened(node)
    if kind == "tag":
        tool = _tool(node, form)
        return {"tools": [tool], "tool_choice": named(tool), "parallel": False, "text": False}
    if kind != "triggered_tags" or not all(form.before.startswith(trigger or "-") for trigger in fields["triggers"]):
        raise Unknown
    return {"tools": _tools(fields["tags"], form), **_choice(fields)}


def _section(node: Any, form: StockForm) -> dict[str, Any]:
    """Calls in a section: in a list of its own, as the only text, or between two texts."""
    assert form.section is not None
    begin, end = form.section
    kind, fields = opened(node)
    if kind == "sequence" and isinstance(fields["elements"], list):
        elements = fields["elements"]
        if len(elements) == 2 and opened(elements[0]) == ("const_string", {"value": _LINES}):
            return _section(elements[1], form)
        if len(elements) != 3 or [opened(elements[place]) for place in (0, 2)] != [
            ("const_string", {"value": begin}),
            ("const_string", {"value": end}),
        ]:
            raise Unknown
        return {**_inside(elements[1], form), "text": False}
    if kind == "tag":
        if fields["begin"].removeprefix(_LINES) != begin or fields["end"] != end:
            raise Unknown
        return {**_inside(fields["content"], form), "text": False}
    if kind != "triggered_tags" or fields["triggers"] != [begin.strip()] or len(fields["tags"]) != 1:
        raise Unknown
    kind, inner = opened(fields["tags"][0])
    if kind != "tag" or inner["begin"] != begin or inner["end"] != end:
        raise Unknown
    found = _inside(inner["content"], form)
    return found if fields.get("at_least_one") else {**found, "tool_choice": "auto"}


def _inside(node: Any, form: StockForm) -> dict[str, Any]:
    """What is inside of a section that has to come."""
    kind, fields = opened(node)
    if kind == "tag":
        tool = _tool(node, form)
        return {"tools": [tool], "tool_choice": named(tool), "parallel": False}
    if kind != "tags_with_separator" or fields.get("separator") != "" or not fields.get("at_least_one"):
        raise Unknown
    return {"tools": _tools(fields["tags"], form), **_choice(fields)}


def _choice(fields: dict[str, Any]) -> dict[str, Any]:
    needed, single = bool(fields.get("at_least_one")), bool(fields.get("stop_after_first"))
    return {"tool_choice": "required" if needed else "auto", "parallel": not single}


def _tools(tags: Any, form: StockForm) -> list[dict[str, Any]]:
    if not isinstance(tags, list) or not tags:
        raise Unknown
    return [_tool(tag, form) for tag in tags]


def _tool(node: Any, form: StockForm) -> dict[str, Any]:
    kind, fields = opened(node)
    begin = fields.get("begin")
    if kind != "tag" or not isinstance(begin, str) or fields["end"] != form.end:
        raise Unknown
    if not begin.startswith(form.before) or not begin.endswith(form.after):
        raise Unknown
    name = begin.removeprefix(form.before).removesuffix(form.after)
    if not name or any(char in name for char in '<>"\\\n'):
        raise Unknown
    kind, fields = opened(_arguments(fields["content"], form))
    if kind != "json_schema" or fields.get("style", "json") != form.style:
        raise Unknown
    function: dict[str, Any] = {"name": name}
    if fields["json_schema"] is not True:
        function["parameters"] = fields["json_schema"]
    return {"type": "function", "function": function}


def _arguments(content: Any, form: StockForm) -> Any:
    """The arguments, behind the number of the call where the family has one."""
    if form.numbered is None:
        return content
    kind, fields = opened(content)
    elements = fields.get("elements")
    if kind != "sequence" or not isinstance(elements, list) or len(elements) != 3:
        raise Unknown
    if opened(elements[0]) != ("regex", {"pattern": "\\d+"}):
        raise Unknown
    if opened(elements[1]) != ("const_string", {"value": form.numbered}):
        raise Unknown
    return elements[2]
