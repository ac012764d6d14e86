"""The tightest level of each tool that the installed xgrammar compiles: never an error for the whole request.

full         the normalised schema of the arguments
types        the declared keys with their plain types, required ones kept
names        any object: only the tool's name is enforced

Compiled grammars are cached by content, and every fall to a lower level is counted and logged with its reason.
xgrammar is imported by whoever makes the compile function, not here.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .schema import LIMITS, Normalised, normalise

__all__ = ["CompiledTool", "Counters", "Ladder", "Level", "Tool", "types_only"]

_log = logging.getLogger(__name__)

Compile = Callable[[dict[str, Any]], Any]
"""Compiles a JSON Schema; raises whatever xgrammar raises."""

#: One of these tells a schema from other objects.
_KEYWORDS = frozenset((
    "$schema", "$id", "$ref", "$dynamicRef", "$recursiveRef", "$anchor", "$defs", "definitions", "title",
    "description", "type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "properties", "required",
    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "items", "prefixItems",
    "minItems", "maxItems", "uniqueItems", "contains", "pattern", "format", "minLength", "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "nullable", "default", "examples",
))  # fmt: skip

ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


class Level(enum.StrEnum):
    """How much of a tool's description the grammar enforces."""

    FULL = "full"
    TYPES = "types"
    NAMES = "names"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as OpenAI's or MCP's list describes it."""

    name: str
    parameters: Any = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CompiledTool:
    """What a tool's grammar enforces: `grammar` accepts the arguments as one JSON object."""

    tool: Tool
    level: Level
    normalised: Normalised
    schema: dict[str, Any]
    grammar: Any
    seconds: float
    """Time spent on it when it was compiled; of no use to compare when it came from the cache."""
    falls: tuple[tuple[Level, str], ...] = ()
    """Levels that did not compile, with the reason."""
    cached: bool = False


@dataclass(slots=True)
class Counters:
    """Counts since start, safe to read at any time."""

    levels: Counter[Level] = field(default_factory=Counter)
    falls: Counter[Level] = field(default_factory=Counter)
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0


def types_only(parameters: Any) -> dict[str, Any]:
    """The declared keys of an argument object with their plain types: what is left when the full schema fails."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    kept: dict[str, Any] = {}
    for name, schema in list(properties.items())[: LIMITS.properties] if isinstance(properties, dict) else ():
        plain = {"type": schema["type"]} if isinstance(schema, dict) and "type" in schema else {}
        kept[name] = normalise(plain).schema
    required = parameters.get("required") if isinstance(parameters, dict) else None
    names = [name for name in kept if isinstance(required, list) and name in required]
    if not kept:
        return dict(ANY_OBJECT)
    return {"type": "object", "properties": kept, "required": names, "additionalProperties": True}


class Ladder:
    """Compiles tools and remembers the results.

    Args:
        compile_schema: compiles one JSON Schema, such as `GrammarCompiler.compile_json_schema`.
        size: results kept; the least recently used goes first.
        seconds: time for all tools of one call, looked at between two compilations. Tools that come after it is
            spent are enforced by name only, and are not remembered as such.

    Used from several threads, it may compile the same tool twice, never wrongly.
    """

    def __init__(self, compile_schema: Compile, *, size: int = 1024, seconds: float = 10.0) -> None:
        self.compile_schema, self.size, self.seconds = compile_schema, size, seconds
        self.counters = Counters()
        self._kept: OrderedDict[str, CompiledTool] = OrderedDict()
        self._lock = threading.Lock()

    def compile_tools(self, tools: Iterable[Tool]) -> list[CompiledTool]:
        """Each tool at the tightest level that compiles; never raises for a schema."""
        end = time.monotonic() + self.seconds
        return [self._tool(tool, end) for tool in tools]

    def _tool(self, tool: Tool, end: float) -> CompiledTool:
        key = _content(tool)
        with self._lock:
            found = self._kept.get(key) if key else None
            if found is not None and key:
                self._kept.move_to_end(key)
                self.counters.hits += 1
                self.counters.levels[found.level] += 1
                return CompiledTool(
                    tool, found.level, found.normalised, found.schema, found.grammar, found.seconds, found.falls, True
                )
        made, lasting = self._climb(tool, end)
        with self._lock:
            self.counters.misses += 1
            self.counters.seconds += made.seconds
            self.counters.levels[made.level] += 1
            self.counters.falls.update(level for level, _ in made.falls)
            if key and lasting:
                self._kept[key] = made
                while len(self._kept) > self.size:
                    self._kept.popitem(last=False)
        return made

    def _climb(self, tool: Tool, end: float) -> tuple[CompiledTool, bool]:
        """From the tightest level down, and whether the result holds next time too."""
        start = time.monotonic()
        parameters = {} if tool.parameters is None else tool.parameters
        normalised = normalise(parameters, strict=tool.strict, arguments=True)
        falls: list[tuple[Level, str]] = []
        lasting = True
        for level in (Level.FULL, Level.TYPES, Level.NAMES):
            if level is not Level.NAMES and time.monotonic() > end:
                falls.append((level, f"the {self.seconds:g} s for this call's tools are spent"))
                lasting = False
                continue
            schema = _schema(level, parameters, normalised)
            try:
                grammar = self.compile_schema(schema)
            except Exception as error:  # xgrammar raises RuntimeError, ValueError and its own
                reason = " ".join(str(error).split())[-300:] or type(error).__name__
                falls.append((level, reason))
                _log.warning("tool=%r: level %s does not compile, trying a looser one: %s", tool.name, level, reason)
                continue
            spent = time.monotonic() - start
            return CompiledTool(tool, level, normalised, schema, grammar, spent, tuple(falls)), lasting
        # Not even any object: no compiler at all. The tool's name is enforced by the tag around it.
        return CompiledTool(
            tool, Level.NAMES, normalised, dict(ANY_OBJECT), None, time.monotonic() - start, tuple(falls)
        ), False


def _schema(level: Level, parameters: Any, normalised: Normalised) -> dict[str, Any]:
    if level is Level.FULL:
        return normalised.schema
    return types_only(parameters) if level is Level.TYPES else dict(ANY_OBJECT)


def _content(tool: Tool) -> str | None:
    """Key of the cache: equal for tools that compile alike. None for what is no JSON."""
    try:
        text = json.dumps([tool.parameters, tool.strict], ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def read_tools(document: Any) -> list[Tool]:
    """Tools of an OpenAI array, of {"tools": [...]}, of an MCP tools/list result, or one schema on its own.

    Raises:
        ValueError: the document is none of these.
    """
    if isinstance(document, Mapping) and isinstance(document.get("result"), Mapping):
        document = document["result"]  # a JSON-RPC response of MCP
    if isinstance(document, Mapping) and "tools" in document:
        document = document["tools"]
    elif isinstance(document, Mapping):
        one = document.get("function", document)
        document = (
            [document]
            if isinstance(one, Mapping) and isinstance(one.get("name"), str)
            else [{"name": "schema", "parameters": _schema_alone(document)}]
        )
    if document == []:
        raise ValueError("tools=[]: there is nothing to look at; expected a list with at least one tool")
    if not isinstance(document, list):
        kind = type(document).__name__
        raise ValueError(f"tools={kind}: expected a list of tools, an object with one under 'tools', or a JSON Schema")
    return [_tool(entry, place) for place, entry in enumerate(document)]


def _schema_alone(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, if it can be meant as a JSON Schema: anything is one, but nothing would be enforced of it."""
    if document and _KEYWORDS.isdisjoint(document):
        keys = ", ".join(map(repr, document))[:100]
        raise ValueError(
            f"tools=object with {keys}: no keyword of JSON Schema; expected a list of tools, an object with one under "
            f"'tools', or a JSON Schema"
        )
    return document


def _tool(entry: Any, place: int) -> Tool:
    function = entry.get("function", entry) if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"tools[{place}]={str(entry)[:60]!r}: a tool is an object with a name, as in OpenAI's or MCP's list"
        )
    parameters = next((function[key] for key in ("parameters", "inputSchema", "input_schema") if key in function), None)
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise ValueError(
            f"tools[{place}].strict={str(strict)[:60]!r}: servers disagree on what this means; expected true or false"
        )
    return Tool(function["name"], parameters, strict is True)
