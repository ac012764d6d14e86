"""What is written once for the arguments of many tools says and allows what it would if written for each anew."""

from __future__ import annotations

import random
from typing import Any

import pytest
from json_schemas import random_document
from tool_lists import random_tools

from dynamo_structural_tags import grammar
from dynamo_structural_tags.ebnf import tagged
from dynamo_structural_tags.ebnf.shape_keys import shape_key
from dynamo_structural_tags.grammar import Built, build
from dynamo_structural_tags.kept import Kept
from dynamo_structural_tags.schema import read_shapes
from dynamo_structural_tags.schema.shapes import Object


def _anew(tools: list[dict[str, Any]], values: Kept[Any], patch: pytest.MonkeyPatch) -> Built:
    """The tag, with nothing known but values."""
    patch.setattr(grammar, "_kept", Kept(256))
    patch.setattr(grammar, "_tools", Kept(4096))
    patch.setattr(tagged, "_values", values)
    return build(tools)


def _said(built: Built) -> list[Any]:
    return [(tool.name, tool.level, tool.falls, sorted(map(str, tool.messages))) for tool in built.tools]


@pytest.mark.parametrize("seed", range(10))
def test_no_message_depends_on_what_was_written_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same properties under other names in other tools, also strict ones, and written for each tool alone."""
    rng = random.Random(seed)
    tools = random_tools(rng)
    schemas = [random_document(rng) for _ in range(4)]
    for number, strict in enumerate((False, True, False)):
        names = rng.sample("abcdefgh", 4)
        parameters = {"type": "object", "properties": dict(zip(names, rng.sample(schemas, 4), strict=True))}
        tools.append({"name": f"tool_{number}", "strict": strict, "parameters": parameters})
    monkeypatch.setattr(tagged, "shape_key", lambda *_: None)
    alone = _anew(tools, Kept(4096), monkeypatch)
    monkeypatch.setattr(tagged, "shape_key", shape_key)
    values: Kept[Any] = Kept(4096)

    assert _said(_anew(tools, values, monkeypatch)) == _said(alone)
    assert _said(_anew(tools[::-1], values, monkeypatch)) == _said(alone)[::-1]


def test_a_second_tool_with_the_same_arguments_writes_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    values: Kept[Any] = Kept(4096)
    schemas: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object"},
    ]

    def tool(name: str, *keys: str) -> dict[str, Any]:
        properties = {key: {**schema, "description": key} for key, schema in zip(keys, schemas, strict=True)}
        return {"name": name, "parameters": {"type": "object", "properties": properties}}

    _anew([tool("run", "a", "b", "c")], values, monkeypatch)
    monkeypatch.setattr(values, "put", lambda *_: pytest.fail("written again"))

    assert _anew([tool("walk", "x", "y", "z")], values, monkeypatch).tools[0].name == "walk"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"enum": [1]}, {"enum": [True]}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}),
        ({"type": "string", "maxLength": 5}, {"allOf": [{"type": "string", "maxLength": 5}]}),
        ({"type": "number", "minimum": 1}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, {"type": "object", "properties": {"b": {}, "a": {}}}),
        ({"type": "array", "items": {"type": "string"}}, {"type": "array", "prefixItems": [{"type": "string"}]}),
    ],
)
def test_values_that_are_written_or_spoken_of_in_other_ways_are_told_apart(one: Any, other: Any) -> None:
    shapes = read_shapes({"type": "object", "properties": {"a": one, "b": other}})
    (found,) = shapes.shape
    assert isinstance(found, Object)
    keys = [
        shape_key(shape, ("properties", name), shapes.definitions.shapes) for name, shape in found.properties.items()
    ]

    assert None not in keys
    assert keys[0] != keys[1]


def test_a_schema_that_contains_itself_is_written_for_each_tool() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    shapes = read_shapes({"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    (found,) = shapes.shape
    assert isinstance(found, Object)

    assert shape_key(found.properties["a"], ("properties", "a"), shapes.definitions.shapes) is None
