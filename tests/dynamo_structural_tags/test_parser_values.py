"""Which JSON a value's text is under a schema: a table of texts and readings, written from JSON Schema's meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from glm_turns import call_text, equal_json, tool

from dynamo_structural_tags.allowed import TYPE_NAMES
from dynamo_structural_tags.parser import ArgumentsDelta, GlmStream, ParsedOutput, parse_output

S: dict[str, Any] = {"type": "string"}
I: dict[str, Any] = {"type": "integer"}  # noqa: E741 - the shortest names keep the table readable
N: dict[str, Any] = {"type": "null"}


def _read(schema: Any, text: str, **parameters: Any) -> ParsedOutput:
    output = parse_output("</think>" + call_text("f", {"v": text}), [tool("f", {"v": schema}, **parameters)])
    assert len(output.calls) == 1
    return output


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        # A string is what the model wrote, whatever it looks like.
        (S, "5", "5"),
        (S, "null", "null"),
        (S, ' {"k": 1}\n', ' {"k": 1}\n'),
        (S, '"quoted"', '"quoted"'),
        (S, "\r\n a\r\n", "\r\n a\r\n"),
        (S, "", ""),
        # A branch that nothing satisfies allows nothing.
        ({"anyOf": [{"type": "number"}, False]}, "1.80", 1.8),
        ({"anyOf": [{"type": "number"}, {"enum": []}]}, "1.80", 1.8),
        ({"anyOf": [S, False]}, "1.8", "1.8"),
        # Everything else is JSON.
        (I, "5", 5),
        (I, " 5\n", 5),
        (I, "-0", 0),
        (I, "12345678901234567890123", 12345678901234567890123),
        (I, "2.0", 2.0),
        ({"type": "number"}, "2.50", 2.5),
        ({"type": "number"}, "1e5", 1e5),
        ({"type": "number"}, "3", 3),
        ({"type": "boolean"}, "false", False),
        (N, "null", None),
        ({"type": "array"}, '[1, "a", null]', [1, "a", None]),
        ({"type": "object"}, '{"a": {"b": [true]}}', {"a": {"b": [True]}}),
        ({"type": ["array", "null"]}, "null", None),
        # A union with a string: what the template writes for the other type is the other type.
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "007", "007"),
        ({"type": ["integer", "string"]}, " 7", " 7"),
        ({"type": ["integer", "string"]}, "7.5", "7.5"),
        ({"type": ["number", "string"]}, "1.5", 1.5),
        ({"type": ["number", "string"]}, "1.50", "1.50"),
        ({"type": ["number", "string"]}, "1e5", "1e5"),
        ({"type": ["number", "string"]}, "-0", "-0"),
        ({"type": ["number", "string"]}, "-", "-"),
        ({"type": ["boolean", "string"]}, "true", True),
        ({"type": ["boolean", "string"]}, "True", "True"),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "null ", "null "),
        ({"type": ["string", "null"]}, "nul", "nul"),
        ({"type": ["string", "object"]}, '{"k":1}', {"k": 1}),
        ({"type": ["string", "object"]}, '{"k":1} ', '{"k":1} '),
        ({"type": ["string", "object"]}, "{k}", "{k}"),
        ({"type": ["string", "object"]}, "[1]", "[1]"),
        ({"type": ["string", "array"]}, "[1]", [1]),
        ({"type": ["string", "array"]}, "[1", "[1"),
        ({"anyOf": [S, N]}, "null", None),
        ({"anyOf": [S, I]}, "7", 7),
        ({"oneOf": [S, I]}, "abc", "abc"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "string", "nullable": True}, "5", "5"),
        # Nothing said: everything is possible.
        ({}, "5", 5),
        (True, '{"k":1}', {"k": 1}),
        ({"description": "x"}, "hello", "hello"),
        ("nonsense", "5", 5),
        # Values that are listed.
        ({"enum": ["red", "1", 2]}, "1", "1"),
        ({"enum": ["red", "1", 2]}, "2", 2),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": [True, None]}, "null", None),
        ({"enum": [[1], {"a": 1}]}, '{"a":1}', {"a": 1}),
        ({"const": 5}, "5", 5),
        ({"const": "5"}, "5", "5"),
        ({"type": "string", "enum": ["1", "2"]}, "2", "2"),
        ({"anyOf": [{"enum": ["a"]}, I]}, "7", 7),
        ({"anyOf": [{"const": "auto"}, S]}, "auto", "auto"),
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
        # References, intersections, and what other programs call the types.
        ({"$ref": "#/$defs/Text"}, "5", "5"),
        ({"$ref": "#/definitions/Number"}, "5", 5),
        ({"$ref": "#/$defs/Either"}, "5", 5),
        ({"$ref": "#/properties/v2"}, "5", "5"),
        ({"$ref": "#named"}, "5", "5"),
        ({"$ref": "other.json#/$defs/Text"}, "5", "5"),
        ({"$ref": "/$defs/Text"}, "5", "5"),
        ({"$ref": "#/$defs/a~1b%20c"}, "5", "5"),
        ({"$ref": "#/$defs/nothing"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
        ({"$ref": 7}, "5", 5),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}, "5", "5"),
        ({"allOf": [{"$ref": "#/$defs/Text"}, {"description": "x"}]}, "5", "5"),
        ({"type": "STRING"}, "5", "5"),
        ({"type": "int"}, "5", 5),
        ({"type": "float"}, "5.5", 5.5),
        ({"type": "dict"}, '{"a":1}', {"a": 1}),
        ({"type": "list"}, "[]", []),
        ({"type": "any"}, "5", 5),
        ({"type": "any"}, "x", "x"),
    ],
)
def test_the_schema_decides_what_a_text_is(schema: Any, text: str, value: Any) -> None:
    defs = {"Text": S, "Either": {"anyOf": [S, I]}, "a/b c": S, "Named": {"$anchor": "named", **S}}
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}
    tools = [tool("f", {"v": schema, "v2": S}, **{"$defs": {**defs, "Loop": loop}, "definitions": {"Number": I}})]

    output = parse_output("</think>" + call_text("f", {"v": text}), tools)

    assert equal_json(output.calls, [("f", {"v": value})])
    assert output.outcomes == ["valid"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "True", True),
        (N, "None", None),
        ({"type": "object"}, "{'k': 1}", {"k": 1}),
        (
            {"type": "object"},
            """{'a': "it's", 'b': 'say "x"', 'c': 'it\\'s', 'd': [True, None,],}""",
            {"a": "it's", "b": 'say "x"', "c": "it's", "d": [True, None]},
        ),
        ({"type": "object"}, '{"word": "True, None,]"}', {"word": "True, None,]"}),
        ({"type": "array"}, "['a', 'b']", ["a", "b"]),
        ({"type": "array"}, '["a\nb"]', ["a\nb"]),
        ({"enum": [True, "x"]}, "True", True),
    ],
)
def test_other_notations_of_a_value_are_repaired(schema: Any, text: str, value: Any) -> None:
    output = _read(schema, text)

    assert equal_json(output.calls, [("f", {"v": value})])
    assert output.outcomes == ["valid" if text.startswith('{"word') else "recovered"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (I, "five", "five"),
        (I, "2.5", 2.5),
        (I, "true", True),
        (I, "", ""),
        (I, "5 6", "5 6"),
        (I, "9" * 5000, "9" * 5000),  # more digits than Python reads
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "-Infinity", "-Infinity"),
        ({"type": "object"}, "[1]", [1]),
        ({"type": "object"}, "{'k': }", "{'k': }"),
        ({"type": "array"}, '{"a": 1}', {"a": 1}),
        ({"type": "array"}, "[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
        ({"enum": ["a", "b"]}, "c", "c"),
        ({"enum": ["a", "b"]}, "5", "5"),
        ({"enum": [1, 2]}, "3", 3),
        ({"const": True}, "1", 1),
    ],
)
def test_a_value_that_does_not_fit_is_returned_and_reported(schema: Any, text: str, value: Any) -> None:
    output = _read(schema, text)

    assert equal_json(output.calls, [("f", {"v": value})])
    assert output.outcomes == ["invalid"]
    assert [note.code for note in output.notes] == ["wrong_type"]


@pytest.mark.parametrize(
    ("parameters", "key", "value"),
    [
        ({}, "other", "5"),
        ({"additionalProperties": {"type": "integer"}}, "other", 5),
        ({"additionalProperties": {"type": "string"}}, "other", "5"),
        ({"additionalProperties": True}, "other", 5),
        ({"patternProperties": {"^(a+)+$": {"type": "integer"}}}, "aaaa", 5),
        ({"allOf": [{"properties": {"other": {"type": "integer"}}}]}, "other", 5),
        ({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"other": {"type": "integer"}}}}}, "other", 5),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"other": {"type": "integer"}}}]}, "other", 5),
    ],
)
def test_an_argument_is_looked_up_where_schemas_may_declare_it(parameters: Any, key: str, value: Any) -> None:
    output = parse_output("</think>" + call_text("f", {key: "5"}), [tool("f", **parameters)])

    assert equal_json(output.calls, [("f", {key: value})])


def test_missing_and_forbidden_arguments_are_reported() -> None:
    tools = [tool("f", {"a": S, "b": S}, required=["a", "b"], additionalProperties=False)]

    output = parse_output("</think>" + call_text("f", {"a": "x", "c": "y"}), tools)

    assert output.calls == [("f", {"a": "x", "c": "y"})]
    assert {note.code for note in output.notes} == {"missing_argument", "unknown_argument"}
    assert output.outcomes == ["invalid"]


@pytest.mark.parametrize("parameters", [None, True, 5, "text", [], {"properties": 3, "required": 5, "allOf": 7}])
def test_a_tool_without_a_usable_schema_takes_strings(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    assert parse_output("</think>" + call_text("f", {"a": "5"}), tools).calls == [("f", {"a": "5"})]


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"v": I}}}},
        {"type": "function", "name": "f", "parameters": {"properties": {"v": I}}},
        {"name": "f", "input_schema": {"properties": {"v": I}}},
    ],
)
def test_tools_come_as_openais_chat_and_responses_and_anthropics_apis_have_them(entry: Any) -> None:
    junk: list[Any] = [None, 5, {}, {"function": {}}, {"name": ""}, {"name": 7}]

    assert parse_output("</think>" + call_text("f", {"v": 5}), [*junk, entry]).calls == [("f", {"v": 5})]


@pytest.mark.parametrize("name", ["string", "integer", "number", "boolean", "null", "object", "array"])
def test_the_standards_type_names_mean_themselves(name: str) -> None:
    assert name in TYPE_NAMES[name]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80\udcff tail", "cut byte \ufffd", "é\ud83d"])
@pytest.mark.parametrize("schema", [S, {"type": ["string", "null"]}, {}])
def test_surrogates_and_replaced_bytes_come_back_and_are_escaped_on_the_way(schema: Any, text: str) -> None:
    stream = GlmStream([tool("f", {"v": schema})])
    events = [*stream.feed("</think>" + call_text("f", {"v": text})), *stream.finish("stop")]
    fragments = "".join(event.json for event in events if isinstance(event, ArgumentsDelta))

    assert json.loads(fragments.encode("utf-8")) == {"v": text}


def test_an_object_with_surrogates_in_its_strings_is_escaped_too() -> None:
    text = '{"k": "\ud800", "l": "\\udfff"}'

    assert _read({"type": "object"}, text).calls == [("f", {"v": json.loads(text)})]
