"""No text makes the parser raise, lose a call, depend on how it was cut, or work more than in proportion."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from glm_turns import call_text, common_tools, tool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.allowed import allowed
from dynamo_structural_tags.parser import NOTES, OUTCOMES, CallCounts, CallEnd, GlmStream, Note, parse_output
from dynamo_structural_tags.values import Reading, read_value

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
WORDS = [
    "run",
    "write_file",
    "typed",
    "noargs",
    "bash",
    "cmd",
    "content",
    "path",
    "o",
    "isn",
    " ",
    "\n",
    "x",
    "<",
    "</",
    '"',
    "{",
    "}",
    "5",
    "`",
]
CALL = "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>"
SOUP = st.lists(st.sampled_from([*MARKERS, *MARKERS, *WORDS, CALL]) | st.text(max_size=2), max_size=30).map("".join)
CHOICES: list[Any] = [
    "auto",
    "none",
    "required",
    {"type": "function", "function": {"name": "run"}},
    {},
    None,
    3,
    {"type": []},
]
TOOLS = common_tools()


@given(
    SOUP,
    st.sampled_from(["stop", "length", "abort", None]),
    st.sampled_from(CHOICES),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_text_raises_and_no_cut_matters(
    raw: str, reason: str | None, choice: Any, thinking: bool, offered: bool, chance: Any
) -> None:
    tools = TOOLS if offered else None
    options: dict[str, Any] = {"finish_reason": reason, "tool_choice": choice, "thinking": thinking}
    whole = parse_output(raw, tools, **options)

    assert parse_output("", tools, chunks=list(raw), **options) == whole
    cuts = sorted(chance.randint(0, len(raw)) for _ in range(5))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parse_output("", tools, chunks=pieces, **options) == whole
    assert {note.code for note in whole.notes} <= set(NOTES)
    assert set(whole.outcomes) <= set(OUTCOMES)
    json.dumps(whole.calls)


@given(SOUP)
@settings(max_examples=150, deadline=None)
def test_a_whole_call_is_never_lost_whatever_stands_before_it(raw: str) -> None:
    """In any text, a well-formed call at the end is a call, a part of a value or thought, or its words are there."""
    output = parse_output(raw + "</think>" + CALL, TOOLS)

    everything = json.dumps([output.calls, output.truncated, output.content, output.reasoning])
    noted = {note.name for note in output.notes}
    assert "run" in noted or "ls" in everything


@given(
    st.text(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable", "properties"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_under_any_schema(text: str, schema: Any) -> None:
    reading = read_value(text, allowed(schema, schema))

    assert isinstance(reading, Reading)
    json.loads(reading.json)
    reading.json.encode("utf-8")


REPEATED = [
    "<",
    "</",
    "</arg_value>",
    "</tool_call>",
    "<arg_value>",
    "<arg_key>",
    "</arg_value></tool_call>x",
    "</arg_value></tool_call>" + "y" * 1000,
    "</arg_value><arg_key>",
    "</arg_value><arg_key>cmd</arg_key>",
    "</arg_value><arg_key>cmd</arg_key><arg_value>",
    "</arg_value><arg_key>" + "k" * 200 + "</arg_key> ",
    "</arg_value>\n",
    "</tool_call><tool_call>",
    "</tool_call><tool_call>run<arg_key>cmd</arg_key><arg_value>",
    "<tool_call>run<arg_key>cmd</arg_key><arg_value>a<arg_value>b</arg_value></tool_call>",
    "<tool_call>run<arg_key>cmd</arg_key><arg_value>a</tool_call>",
    "<tool_call>run<arg_key>cmd</arg_key><arg_value>a</arg_value>",
    "<tool_call>write_file<arg_key>path</arg_key><arg_value>a<arg_key>content</arg_key>",
    "<tool_call>",
    "<tool_call>run",
    "<tool_call>" + "n" * 128,
    "<tool_call>\n",
    "</think>",
    "[",
    '"\\',
    "'\\'",
]
HEADS = [
    "",
    "</think>",
    "</think><tool_call>run<arg_key>cmd</arg_key><arg_value>",
    "<tool_call>run<arg_key>cmd</arg_key><arg_value>",
    "</think><tool_call>typed<arg_key>o</arg_key><arg_value>",
    "</think><tool_call>typed<arg_key>any</arg_key><arg_value>{",
    "</think><tool_call>typed<arg_key>isn</arg_key><arg_value>",
]


def _steps(text: str, reason: str, size: int) -> int:
    stream = GlmStream(TOOLS)
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    stream.finish(reason)
    return stream.handled


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("unit", REPEATED)
def test_the_steps_taken_grow_with_the_text_and_no_faster(head: str, unit: str) -> None:
    """Each token is handled a fixed number of times: rule 4 may go back twice, and look-ahead hands on once."""
    count = max(20, 1200 // len(unit))
    for reason in ("stop", "length"):
        for size in (2, 10**6):
            once = _steps(head + unit * count, reason, size)
            tripled = _steps(head + unit * 3 * count, reason, size)
            assert tripled <= 3.2 * once + 200
            assert tripled <= 12 * (len(head) + 3 * count * len(unit))


@pytest.mark.parametrize("unit", ["<", "</arg_value>", "[", "<arg_value>", "x", "</arg_value></tool_call>x"])
@pytest.mark.parametrize("head", HEADS)
def test_memory_stays_in_proportion_to_the_text(head: str, unit: str) -> None:
    text = head + unit * (30_000 // len(unit))
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    tracemalloc.start()
    try:
        stream = GlmStream(TOOLS)
        for piece in pieces:
            stream.feed(piece)
        stream.finish("stop")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 60 * len(text)  # a Python string of four characters takes 53 bytes, and a list 8 to hold it


def test_memory_does_not_grow_while_a_string_streams() -> None:
    stream = GlmStream(TOOLS)
    stream.feed("</think><tool_call>run<arg_key>cmd</arg_key><arg_value>")
    tracemalloc.start()
    try:
        for _ in range(20_000):
            stream.feed("abcd")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 20_000


def _chain(links: int) -> dict[str, Any]:
    """Each definition names the next one twice: 2^links ways through it."""
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(links)}
    return {"$defs": {**defs, f"d{links}": {"type": "integer"}}, "properties": {"v": {"$ref": "#/$defs/d0"}}}


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return {"properties": {"v": schema}}


@pytest.mark.parametrize(
    "parameters",
    [
        _chain(60),
        _deep(5000),
        {"properties": {"v": {"enum": [str(i) for i in range(100_000)]}}},
        {"properties": {"v": {"anyOf": [{"const": i} for i in range(20_000)]}}},
        {"properties": {f"p{i}": {"type": "string"} for i in range(10_000)} | {"v": {"type": "integer"}}},
        {"$ref": "#", "properties": {"v": {"$ref": "#/properties/v"}}},
        {"allOf": [{"$ref": "#"}] * 50, "properties": {"v": {"type": "integer"}}},
        {"properties": {"v": {"type": "string", "pattern": "(a+)+$"}}},
        {"patternProperties": {"(a+)+$": {"type": "integer"}}},
    ],
    ids=["chain", "deep", "enum", "consts", "wide", "self", "selves", "pattern", "patterns"],
)
def test_a_hostile_schema_gets_an_answer(parameters: dict[str, Any]) -> None:
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    stream = GlmStream(tools)

    events = [*stream.feed("</think>" + call_text("f", {"v": 7, "a" * 40 + "!": "x"})), *stream.finish("stop")]

    assert [event.name for event in events if isinstance(event, CallEnd)] == ["f"]


def test_deep_nesting_is_a_string_and_reported() -> None:
    text = '{"a":' * 100_000
    output = parse_output("</think>" + call_text("typed", {"o": text}), TOOLS)

    assert output.calls == [("typed", {"o": text})]
    assert output.outcomes == ["invalid"]


def test_counts_are_those_of_the_notes_and_outcomes() -> None:
    counts = CallCounts()
    tools = [tool("f", {"n": {"type": "integer"}})]
    parse_output(
        "</think>" + call_text("f", {"n": 1}) + call_text("f", {"n": "x"}) + call_text("g", {}), tools, counts=counts
    )
    parse_output("</think><tool_call>f", tools, finish_reason="length", counts=counts)
    parse_output("</think><tool_call>f", tools, counts=counts)
    parse_output("</think>" + call_text("f", {}), tools, tool_choice="none", counts=counts)

    assert counts.as_dict() == {"valid": 1, "recovered": 1, "invalid": 1, "undeclared": 2, "truncated": 1}
    assert counts["valid"] == 1


def test_a_finished_stream_takes_nothing_more() -> None:
    stream = GlmStream(TOOLS)
    stream.finish("stop")

    assert stream.feed("</think>more") == []
    assert stream.finish("length") == []


@pytest.mark.parametrize(
    "choice", ["required", "any", {"type": "function", "function": {"name": "run"}}, {"type": "any"}]
)
def test_a_forced_call_that_does_not_come_is_noted(choice: Any) -> None:
    output = parse_output("ok</think>No.", TOOLS, tool_choice=choice)

    assert (output.content, output.finish_reason) == ("No.", "stop")
    assert [note.code for note in output.notes] == ["no_call"]
    assert isinstance(output.notes[0], Note)
