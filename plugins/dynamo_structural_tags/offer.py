"""What a request offers the model: its tools in any of the usual shapes, and its tool choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dynamo_structural_tags.allowed import ANY, STRING, Allowed, allowed, resolve

__all__ = ["Offer", "Tool"]

_MOST_PARTS = 200


class Tool:
    """One declared tool, as far as reading its arguments needs it.

    parameters: JSON Schema of the arguments; anything but an object means that nothing is known about them.
    strict: the tool's `strict`, of no meaning for reading.
    """

    def __init__(self, name: str, parameters: Any = None, strict: bool = False) -> None:
        self.name, self.parameters, self.strict = name, parameters, strict
        self._root = parameters if isinstance(parameters, Mapping) else {}
        self._properties: dict[str, Any] = {}
        self.required: set[str] = set()
        self._others: list[Any] = []
        self._gather(self._root, 0, required=True)
        self._allowed: dict[str, Allowed] = {}

    def _gather(self, schema: Any, parts: int, *, required: bool) -> int:
        """Collect arguments from the schema, what it refers to, and its branches; returns the parts read so far."""
        if not isinstance(schema, Mapping) or parts >= _MOST_PARTS:
            return parts
        parts += 1
        if isinstance(schema.get("properties"), Mapping):
            for key, value in schema["properties"].items():
                self._properties.setdefault(str(key), value)
        if required and isinstance(schema.get("required"), list):
            self.required.update(key for key in schema["required"] if isinstance(key, str))
        if "additionalProperties" in schema:
            self._others.append(schema["additionalProperties"])
        if isinstance(schema.get("patternProperties"), Mapping):
            self._others.extend(schema["patternProperties"].values())
        if "$ref" in schema:
            parts = self._gather(resolve(schema["$ref"], self._root), parts, required=required)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for part in schema[keyword] if isinstance(schema.get(keyword), list) else ():
                parts = self._gather(part, parts, required=required and keyword == "allOf")
        return parts

    def declares(self, key: str) -> bool:
        """Whether the schema has a property of this name."""
        return key in self._properties

    def refuses(self, key: str) -> bool:
        """Whether the schema allows no argument of this name."""
        return key not in self._properties and bool(self._others) and all(other is False for other in self._others)

    def allowed(self, key: str) -> Allowed:
        """What the schema allows for an argument; a name that it does not speak of is a string."""
        if key in self._properties:
            if key not in self._allowed:
                found = allowed(self._properties[key], self._root)
                self._allowed[key] = found if found.kinds() else ANY
            return self._allowed[key]
        return self.allowed_otherwise()

    def allowed_otherwise(self) -> Allowed:
        """What the schema allows for an argument that it does not name."""
        others = [other for other in self._others if other is not False]
        if not others:
            return STRING
        if "" not in self._allowed:
            either = allowed(others[0], self._root)
            for other in others[1:]:
                either |= allowed(other, self._root)
            self._allowed[""] = either if either.kinds() else ANY
        return self._allowed[""]


class Offer:
    """The tools of a request and the choice it leaves the model.

    tools: OpenAI tools (chat or responses) or Anthropic tools; entries without a name are passed over.
    tool_choice: "auto", "none", "required", or OpenAI's or Anthropic's objects; anything else counts as "auto".
    """

    def __init__(self, tools: Iterable[Any] | None = None, tool_choice: Any = "auto") -> None:
        self.tools: dict[str, Tool] = {}
        for entry in tools if isinstance(tools, Iterable) and not isinstance(tools, str | bytes | Mapping) else ():
            tool = _tool(entry)
            if tool is not None:
                self.tools.setdefault(tool.name, tool)
        self.forced = False
        self.named: str | None = None
        self._only: set[str] | None = None
        self._none = False
        self._choose(tool_choice)

    def _choose(self, choice: Any) -> None:
        if isinstance(choice, str):
            self._none = choice == "none"
            self.forced = choice in ("required", "any")
            return
        if not isinstance(choice, Mapping):
            return
        inner = _inner(choice, "function")
        match choice.get("type"):
            case "function" | "tool" if isinstance(inner.get("name"), str):
                self.forced, self.named, self._only = True, inner["name"], {inner["name"]}
            case "allowed_tools":
                inner = _inner(choice, "allowed_tools")
                self.forced = inner.get("mode") == "required"
                entries = inner.get("tools")
                tools = [_tool(entry) for entry in entries] if isinstance(entries, list) else []
                self._only = {tool.name for tool in tools if tool is not None}
            case "none" | "any" as word:
                self._choose(word)

    def refusal(self) -> str | None:
        """The code of the note if the request allows no call at all, None if it does."""
        if self._none:
            return "call_under_none"
        return None if self.tools else "call_without_tools"

    def offered(self) -> list[Tool]:
        """The tools that may be called, each once, in the request's order."""
        return [] if self._none else [tool for name, tool in self.tools.items() if self.objection(name) is None]

    def objection(self, name: str) -> str | None:
        """The code of the note if a call of this tool was not offered, None if it was."""
        if name not in self.tools:
            return "undeclared_tool"
        return "tool_not_allowed" if self._only is not None and name not in self._only else None


def _inner(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under `key`, or the entry itself: some APIs nest what others have flat."""
    inner = entry.get(key)
    return inner if isinstance(inner, Mapping) else entry


def _tool(entry: Any) -> Tool | None:
    if not isinstance(entry, Mapping):
        return None
    inner = _inner(entry, "function")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        return None
    return Tool(name, inner.get("parameters", inner.get("input_schema")), inner.get("strict") is True)
