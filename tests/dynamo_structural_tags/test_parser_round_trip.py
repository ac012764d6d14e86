"""What the template writes is what the parser reads: random arguments and schemas, written out and parsed back.

The writer is the template's format (glm_turns.call_text), the oracle the arguments that went in and jsonschema's type
rules written out here; the parser is asked in one piece and in random pieces.
"""

from __future__ import annotations

import json
import random
from typing import Any

from glm_turns import call_text, equal_json, tool
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.parser import parse_output

MARKERS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
#: Pieces that have led parsers astray.
PIECES = [
    *MARKERS,
    "<",
    "</",
    "</arg_",
    "<tool",
    ">",
    "x",
    " ",
    "\n",
    "\r\n",
    "\t",
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
]
PIECES += ["null", "true", "5", "run", "a", "b", "é", "🚀", "\x00", "\ud800", "\ufffd", "`"]

ANY_TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


def _without(*forbidden: str) -> st.SearchStrategy[str]:
    return ANY_TEXT.filter(lambda text: not any(mark in text for mark in forbidden))


#: Strings without the marker that closes a value. Nothing in them may be lost.
TEXT = _without("</arg_value>")
#: Strings that may be split anywhere else.
CLOSERS = st.lists(
    st.sampled_from(
        [
            "</arg_value>x",
            "</arg_value> </arg_key>",
            "</arg_value>\n.",
            "</tool_call>",
            "<tool_call>",
            "\n",
            "ab",
            "<arg_key>k",
        ]
    ),
    max_size=8,
).map("".join)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=8,
)
CONTAINERS = JSON_VALUES.filter(lambda value: isinstance(value, list | dict))

#: A schema with the values that it allows, as far as the template's text tells them from each other.
TYPED: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "string"}, TEXT),
    ({"type": "integer"}, st.integers()),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "null"}, st.none()),
    ({"type": "object"}, st.dictionaries(ANY_TEXT, JSON_VALUES, max_size=4)),
    ({"type": "array"}, st.lists(JSON_VALUES, max_size=4)),
    ({"type": ["string", "null"]}, st.none() | TEXT.filter(lambda text: text != "null")),
    (
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        st.integers() | TEXT.filter(lambda text: not text.isdecimal()),
    ),
    ({"type": ["object", "null"]}, st.none() | st.dictionaries(ANY_TEXT, JSON_VALUES, max_size=3)),
    (
        {"enum": ["a b", "5", 7, None, True, [1, 2], "<arg_key>"]},
        st.sampled_from(["a b", "5", 7, None, True, [1, 2], "<arg_key>"]),
    ),
]
KEYS = ["cmd", "path", "a.b", "with space", "é", "x-1", "default"]


def _utf16(value: Any) -> Any:
    """The value as JSON can carry it: two surrogates in a row are one character."""
    return json.loads(json.dumps(value))


@st.composite
def _calls(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Tools, and calls that are valid for them."""
    tools, calls = [], []
    for name in draw(
        st.lists(st.sampled_from(["run", "write_file", "mcp__a.b/c", "f"]), min_size=1, max_size=3, unique=True)
    ):
        keys = draw(st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
        chosen = {key: draw(st.sampled_from(TYPED)) for key in keys}
        tools.append(tool(name, {key: schema for key, (schema, _) in chosen.items()}))
        calls.append((name, {key: draw(values) for key, (_, values) in chosen.items()}))
    # What opens a pair in a string, and closes it in the JSON of a later argument, reads as one long string.
    values = [value for _, arguments in calls for value in arguments.values()]
    opens = any(isinstance(value, str) and "<arg_value>" in value for value in values)
    assume(not opens or not any("</arg_value>" in json.dumps(value) for value in values))
    return tools, calls


def _cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 20)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _check(
    tools: list[dict[str, Any]], calls: list[tuple[str, dict[str, Any]]], before: str, after: str, seed: int
) -> None:
    raw = "thought</think>" + before + "".join(call_text(name, arguments) for name, arguments in calls) + after
    output = parse_output(raw, tools)

    assert equal_json(_utf16(output.calls), _utf16(calls))
    assert output.outcomes == ["valid"] * len(calls)
    assert (output.reasoning, output.content) == ("thought", before + after)
    assert output.finish_reason == "tool_calls"
    assert parse_output("", tools, chunks=_cut(raw, seed)) == output


@given(_calls(), st.integers())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_every_valid_call_comes_back_as_it_was(drawn: tuple[list[Any], list[Any]], seed: int) -> None:
    _check(*drawn, "", "", seed)


@given(_calls(), _without(*MARKERS), _without(*MARKERS), st.integers())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_text_around_calls_changes_nothing(
    drawn: tuple[list[Any], list[Any]], before: str, after: str, seed: int
) -> None:
    _check(*drawn, before, after, seed)


@given(st.lists(CLOSERS, min_size=1, max_size=4), st.integers())
@settings(max_examples=200, deadline=None)
@example(["</arg_value>x</tool_call>"], 0)
def test_a_closer_inside_a_string_is_text_if_no_argument_or_end_follows_it(values: list[str], seed: int) -> None:
    schema = {"path": {"type": "string"}, "content": {"type": "string"}}

    _check([tool("write", schema)], [("write", {"path": "a", "content": value}) for value in values], "", "", seed)


@given(_calls(), st.integers())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_a_file_that_quotes_whole_calls_comes_back_whole(drawn: tuple[list[Any], list[Any]], seed: int) -> None:
    """Their values have pairs of markers that match; see the escape rules of `value_reader`."""
    _, quoted = drawn
    plain = [(name, dict.fromkeys(arguments, "v")) for name, arguments in quoted]
    content = "Examples:\n" + "\nor\n".join(call_text(name, arguments) for name, arguments in plain)
    schema = {"path": {"type": "string"}, "content": {"type": "string"}}

    for text in (content, content + "\n"):
        _check([tool("write", schema)], [("write", {"path": "a", "content": text})], "", "", seed)


@given(CONTAINERS, st.sampled_from([{"type": ["object", "array"]}, {}, {"type": ["string", "object", "array"]}]))
@settings(max_examples=150, deadline=None)
def test_arrays_and_objects_may_contain_any_marker(value: Any, schema: dict[str, Any]) -> None:
    _check(
        [tool("f", {"v": schema, "w": {"type": "integer"}})],
        [("f", {"v": value, "w": 1}), ("f", {"v": value})],
        "",
        " Done.",
        1,
    )
