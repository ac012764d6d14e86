"""How Dynamo 1.6.1 and xgrammar, for vLLM, write the tags of families beside GLM: see `StockForm` in their files.

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
    if kind != "triggered_tags" or not all(_begins(trigger, form) for trigger in fields["triggers"]):
        raise Unknown
    return {"tools": _tools(fields["tags"], form), **_choice(fields)}


def _begins(trigger: Any, form: StockForm) -> bool:
    return isinstance(trigger, str) and trigger != "" and form.before.startswith(trigger)


def _section(node: Any, form: StockForm) -> dict[str, Any]:
    """Calls in a section: in a list of its own, as the only text, or between two texts."""
    assert form.section is not None
    begin, end = form.section
    kind, fields = opened(node)
    if kind == "sequence":
        elements = fields["elements"]
        if len(elements) == 2 and opened(elements[0]) == ("const_string", {"value": _LINES}):
            return _section(elements[1], form)
        around = [opened(elements[place]) for place in (0, 2)] if len(elements) == 3 else []
        if [kind for kind, _ in around] != ["const_string"] * 2:
            raise Unknown
        if around[0][1]["value"].removeprefix(_LINES) != begin or around[1][1]["value"] != end:
            raise Unknown
        return {**_inside(elements[1], form), "text": False}
    if kind == "tag":
        first, last = fields["begin"].removeprefix(_LINES), fields["end"]
        if not first.startswith(begin) or not last.endswith(end):
            raise Unknown
        if (first, last) == (begin, end):
            return {**_inside(fields["content"], form), "text": False}
        # The section of one call is written together with it.
        inner = {**node, "begin": first.removeprefix(begin), "end": last.removesuffix(end)}
        return {**_inside(inner, form), "text": False}
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
    if kind != "tags_with_separator" or fields.get("separator") != form.separator or not fields.get("at_least_one"):
        raise Unknown
    return {"tools": _tools(fields["tags"], form), **_choice(fields)}


def _choice(fields: dict[str, Any]) -> dict[str, Any]:
    needed, single = bool(fields.get("at_least_one")), bool(fields.get("stop_after_first"))
    return {"tool_choice": "required" if needed else "auto", "parallel": not single}


def _tools(tags: list[Any], form: StockForm) -> list[dict[str, Any]]:
    return [_tool(tag, form) for tag in tags]


def _tool(node: Any, form: StockForm) -> dict[str, Any]:
    kind, fields = opened(node)
    begin = fields.get("begin", "")
    if kind != "tag" or fields["end"] != form.end:
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
    elements = fields.get("elements", [])
    if kind != "sequence" or len(elements) != 3:
        raise Unknown
    if opened(elements[0]) != ("regex", {"pattern": "\\d+"}):
        raise Unknown
    if opened(elements[1]) != ("const_string", {"value": form.numbered}):
        raise Unknown
    return elements[2]
