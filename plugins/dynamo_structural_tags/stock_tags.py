"""Reads tools and tool choice back from the structural tags that Dynamo and vLLM build.

Known are the tags of GLM calls of Dynamo 1.6.1 (v1 and v2 parsers) and of vLLM 0.31 to 0.33, strict and not, and those
of other families of Dynamo, see `stock_forms`. Those of GLM are a ``tag`` for each tool, ``<tool_call>NAME`` to
``</tool_call>``, in one of three kinds of list that tell the choice. Any tag may stand behind a prefix that ends in
``</think>``, where the grammar begins inside the reasoning, or beside another format.
Anything else is not recognised: reading a part of an unknown tag would change what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynamo_structural_tags.glm_format import CALL, CALL_END, KEY, KEY_END, THINK_END, VALUE, VALUE_END
from dynamo_structural_tags.stock_forms import read_calls
from dynamo_structural_tags.stock_nodes import Unknown, alternatives, named, opened

__all__ = ["OWN", "StockTag", "is_own", "marked", "read_tag"]

#: Key beside "format" in the tags of this plugin; xgrammar passes over it.
OWN = "dynamo_structural_tags"


@dataclass(frozen=True)
class StockTag:
    """What a stock tag asks for.

    tools: OpenAI tools; of the schema, what the tag has of it.
    tool_choice: "auto", "required" or a named function.
    parallel: whether several calls are allowed.
    reasoning: whether the tag begins inside the reasoning; None if it leaves that open.
    text: whether content is allowed beside the calls.
    response_format: a JSON Schema that the output may follow instead of calling a tool, None if there is none.
    family: whose calls they are, a key of `families.FAMILIES`.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: Any = "auto"
    parallel: bool = True
    reasoning: bool | None = False
    text: bool = True
    response_format: Any = None
    family: str = "glm"


def is_own(tag: Any) -> bool:
    """Whether this plugin made the tag."""
    return isinstance(tag, Mapping) and OWN in tag


def marked(tag: Mapping[str, Any]) -> dict[str, Any]:
    """The tag with the mark that `is_own` finds."""
    return {**tag, OWN: 1}


def read_tag(tag: Any) -> StockTag | None:
    """What the tag (a parsed JSON document) asks for; None if it is none of the known ones. Never raises."""
    if not isinstance(tag, Mapping) or tag.get("type") != "structural_tag" or set(tag) != {"type", "format"}:
        return None
    try:
        return _whole(tag["format"])
    except (Unknown, RecursionError):
        return None


def _whole(node: Any) -> StockTag:
    kind, fields = opened(node)
    if kind == "or":
        return _beside_format(fields["elements"])
    if kind != "sequence" or not _ends_reasoning(fields["elements"]):
        return StockTag(**_listed(node))
    rest = fields["elements"][1:]
    if len(rest) == 2 and _is_lines(rest[0]):
        rest = rest[1:]
    if len(rest) != 1:
        raise Unknown
    return StockTag(**{**_listed(rest[0]), "reasoning": True})


def _is_lines(node: Any) -> bool:
    """The line ends that Qwen writes behind the reasoning."""
    return opened(node) == ("const_string", {"value": "\n\n"})


def _ends_reasoning(elements: Any) -> bool:
    """Whether a sequence begins with any text up to the end of the reasoning."""
    if not isinstance(elements, list) or len(elements) < 2:
        raise Unknown
    prefix = elements[0]
    if opened(prefix)[0] == "sequence" and len(prefix["elements"]) == 2 and _is_lines(prefix["elements"][1]):
        prefix = prefix["elements"][0]
    if opened(prefix)[0] == "optional":
        prefix = prefix["content"]
    kind, fields = opened(prefix)
    if kind != "tag":
        return False
    if fields["begin"] not in ("", "<think>") or fields["end"] != THINK_END:
        raise Unknown
    if opened(fields["content"])[0] != "any_text":
        raise Unknown
    return True


def _listed(node: Any) -> dict[str, Any]:
    """Arguments of `StockTag` from calls of any known family."""
    try:
        return _calls(node)
    except Unknown:
        return read_calls(node)


def _beside_format(elements: Any) -> StockTag:
    """Calls, or else an answer in a format: with tool choice "auto" and a response format."""
    if not isinstance(elements, list) or len(elements) != 2:
        raise Unknown
    kind, fields = opened(elements[1])
    if kind != "json_schema" or fields.get("style", "json") != "json":
        raise Unknown
    found = _listed(elements[0])
    return StockTag(**{**found, "tool_choice": "auto", "text": False}, response_format=fields["json_schema"])


def _calls(node: Any) -> dict[str, Any]:
    """Arguments of `StockTag` from one of the lists of calls, or the one call."""
    kind, fields = opened(node)
    if kind == "tag":
        tool = _tool(node)
        return {"tools": [tool], "tool_choice": named(tool), "parallel": False, "text": False}
    if kind not in ("triggered_tags", "tags_with_separator") or not isinstance(fields["tags"], list):
        raise Unknown
    tools = [_tool(tag) for tag in fields["tags"]]
    single, needed = bool(fields.get("stop_after_first")), bool(fields.get("at_least_one"))
    if kind == "triggered_tags":
        if not tools or not all(isinstance(t, str) and t.startswith(CALL) for t in fields["triggers"]):
            raise Unknown
        return {"tools": tools, "tool_choice": "required" if needed else "auto", "parallel": not single}
    if not tools or fields.get("separator") != "" or not needed:
        raise Unknown
    choice = named(tools[0]) if single and len(tools) == 1 else "required"
    return {"tools": tools, "tool_choice": choice, "parallel": not single, "text": False}


def _tool(node: Any) -> dict[str, Any]:
    kind, fields = opened(node)
    begin, end = fields.get("begin"), fields.get("end")
    if kind != "tag" or not isinstance(begin, str) or not begin.startswith(CALL) or end != CALL_END:
        raise Unknown
    name = begin.removeprefix(CALL).strip("\n")
    if not name or "<" in name:
        raise Unknown
    function: dict[str, Any] = {"name": name}
    parameters = _parameters(fields["content"])
    if parameters is not True:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _parameters(node: Any) -> Any:
    """The schema of a tool's arguments; True if the tag allows any."""
    kind, fields = opened(node)
    if kind == "json_schema":
        if fields.get("style") != "glm_xml":
            raise Unknown
        return fields["json_schema"]
    if kind == "const_string" and fields["value"] == "":
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if kind != "star":
        raise Unknown
    properties = dict(_pair(pair) for pair in alternatives(fields["content"]))
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _pair(node: Any) -> tuple[str, Any]:
    """Key and schema of ``<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>``."""
    kind, fields = opened(node)
    elements = fields.get("elements")
    if kind != "sequence" or not isinstance(elements, list) or len(elements) != 3:
        raise Unknown
    (first, opening), (last, closing) = opened(elements[0]), opened(elements[2])
    text = opening.get("value")
    if first != "const_string" or last != "const_string" or closing["value"] != VALUE_END or not isinstance(text, str):
        raise Unknown
    if not text.startswith(KEY) or not text.endswith(KEY_END + VALUE):
        raise Unknown
    return text.removeprefix(KEY).removesuffix(KEY_END + VALUE), _value(elements[1])


def _value(node: Any) -> Any:
    schemas = []
    for choice in alternatives(node):
        kind, fields = opened(choice)
        if kind == "const_string":
            schemas.append({"const": fields["value"]})
        elif kind == "any_text":
            schemas.append({"type": "string"})
        elif kind == "json_schema" and fields.get("style", "json") == "json":
            schemas.append(fields["json_schema"])
        else:
            raise Unknown
    if all(set(schema) == {"const"} for schema in schemas if isinstance(schema, Mapping)) and len(schemas) > 1:
        return {"enum": [schema["const"] for schema in schemas]}
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
