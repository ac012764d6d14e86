"""Where reasoning ends and calls begin, and the one reading of each malformed call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from glm_turns import call_text, common_tools, tool

from dynamo_structural_tags.parser import CallStart, ContentDelta, GlmStream, ParsedOutput, ReasoningDelta, parse_output

RUN = call_text("run", {"cmd": "ls"})
TOOLS = [*common_tools(), tool("two", {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "string"}})]


def _parse(raw: str, tools: Any = TOOLS, **options: Any) -> ParsedOutput:
    """Parse in one piece, by characters and in random pieces; all must agree."""
    whole = parse_output(raw, tools, **options)
    assert parse_output("", tools, chunks=list(raw), **options) == whole
    chance = random.Random(raw)
    for _ in range(20):
        cuts = sorted(chance.randint(0, len(raw)) for _ in range(4))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        assert parse_output("", tools, chunks=pieces, **options) == whole
    return whole


@pytest.mark.parametrize(
    ("raw", "thinking", "reasoning", "content"),
    [
        ("why</think>so", True, "why", "so"),
        ("<think>why</think>so", True, "why", "so"),
        ("<think>why</think>so", False, "why", "so"),
        ("\n<think>why</think>\n\nso ", False, "why", "\n\nso "),
        ("why <think> not</think>so</think>", True, "why <think> not", "so</think>"),
        ("</think>so", True, "", "so"),
        ("why", True, "why", ""),
        ("so", False, "", "so"),
        (" \n", False, "", " \n"),
        ("so</think>on<think>", False, "", "so</think>on<think>"),
        ("a < b </thin", True, "a < b </thin", ""),
        ("</arg_value></tool_call><arg_key>", False, "", "</arg_value></tool_call><arg_key>"),
        ("", True, "", ""),
    ],
)
def test_reasoning_ends_at_the_first_closer_and_nothing_else_is_special(
    raw: str, thinking: bool, reasoning: str, content: str
) -> None:
    output = _parse(raw, thinking=thinking)

    assert (output.reasoning, output.content, output.calls) == (reasoning, content, [])
    assert output.finish_reason == "stop"


def test_without_thinking_a_call_may_come_at_once() -> None:
    output = _parse(RUN, thinking=False)

    assert output.calls == [("run", {"cmd": "ls"})]
    assert output.outcomes == ["valid"]


def test_a_sentence_about_calls_does_not_stop_the_reasoning_from_streaming() -> None:
    stream = GlmStream(TOOLS)

    events = stream.feed("I need <tool_call> here now")
    assert [event for event in events if isinstance(event, ReasoningDelta)] == [
        ReasoningDelta("I need "),
        ReasoningDelta("<tool_call> here now"),
    ]
    assert stream.feed(" and go on") == [ReasoningDelta(" and go on")]


def test_a_call_starts_as_soon_as_its_name_is_certain() -> None:
    stream = GlmStream(TOOLS)

    assert stream.feed("</think>so <tool_call>run") == [ContentDelta("so ")]
    assert stream.feed("<arg_key>") == [CallStart(0, "run")]


@pytest.mark.parametrize(
    ("body", "arguments", "codes"),
    [
        ("<arg_key>a<arg_value>x</arg_value>", {"a": "x"}, {"missing_key_close"}),
        ("<arg_key>a</arg_key>x</arg_value>", {"a": "x"}, {"missing_value_open"}),
        ("<arg_key>a</arg_key></arg_value>", {"a": ""}, {"missing_value_open"}),
        ("<arg_key>b</arg_key>5</arg_value>", {"b": 5}, {"missing_value_open"}),
        ("<arg_key>b</arg_key><arg_value>5", {"b": 5}, {"missing_value_close"}),
        (
            "<arg_key>b</arg_key><arg_value>5<arg_key>a</arg_key><arg_value>x</arg_value>",
            {"b": 5, "a": "x"},
            {"missing_value_close"},
        ),
        (
            "<arg_key>a</arg_key><arg_value>x<arg_key>b</arg_key><arg_value>5</arg_value>",
            {"a": "x", "b": 5},
            {"missing_value_close"},
        ),
        ("<arg_key>a</arg_key><arg_value>x", {"a": "x"}, {"missing_value_close"}),
        (
            "<arg_key>a</arg_key><arg_value>x</arg_value><arg_key>c</arg_key>y</arg_value>",
            {"a": "x", "c": "y"},
            {"missing_value_open"},
        ),
        ("</arg_value><arg_key>a</arg_key><arg_value>x</arg_value>", {"a": "x"}, {"stray_markup"}),
        ("</arg_key><arg_key>a</arg_key><arg_value>x</arg_value>", {"a": "x"}, {"stray_markup"}),
        (
            "<arg_key>b</arg_key><arg_value>5</arg_value>junk<arg_key>a</arg_key><arg_value>x</arg_value>",
            {"b": 5, "a": "x"},
            {"stray_markup"},
        ),
        ("<arg_key>a</arg_key><arg_key>c</arg_key><arg_value>x</arg_value>", {"c": "x"}, {"stray_markup"}),
        ("<arg_key>a</tool_call", {}, {"truncated_call"}),
        ("<arg_key>\na </arg_key>\n<arg_value>x</arg_value>\n", {"a": "x"}, set()),
    ],
)
def test_a_malformed_call_has_one_reading(body: str, arguments: dict[str, Any], codes: set[str]) -> None:
    output = _parse(f"</think><tool_call>two{body}" + ("" if "truncated_call" in codes else "</tool_call>"))

    assert {note.code for note in output.notes} == codes
    if "truncated_call" in codes:
        assert (output.calls, output.finish_reason, [name for name, _ in output.truncated]) == ([], "length", ["two"])
    else:
        assert output.calls == [("two", arguments)]
        assert output.outcomes == ["recovered" if codes else "valid"]


@pytest.mark.parametrize(
    "first",
    [
        "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value>",
        "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls</tool_call>",
        "<tool_call>run<arg_key>cmd</arg_key>ls</arg_value></tool_call>",
    ],
)
def test_a_malformed_call_does_not_swallow_the_next_one(first: str) -> None:
    output = _parse("</think>" + first + RUN)

    assert output.calls == [("run", {"cmd": "ls"})] * 2
    assert output.outcomes == ["recovered", "valid"]


def test_a_call_that_the_engine_ends_in_a_value_is_truncated_whatever_it_says() -> None:
    output = _parse("</think><tool_call>run<arg_key>cmd</arg_key><arg_value>rm -r /home/x")

    assert (output.calls, output.finish_reason) == ([], "length")
    assert output.truncated == [("run", '{"cmd": "rm -r /home/x')]
    assert [(note.code, note.call) for note in output.notes] == [("truncated_call", 0)]


@pytest.mark.parametrize(("value", "partial"), [("5", "5"), ("[1, {", "[1, {"), ("", "")])
def test_what_there_is_of_another_value_is_told_as_it_is(value: str, partial: str) -> None:
    schema = {"n": {"type": ["integer", "array"]}}
    output = _parse(f"</think><tool_call>f<arg_key>n</arg_key><arg_value>{value}", [tool("f", schema)])

    assert output.truncated == [("f", '{"n": ' + partial)]


def test_call_after_call_without_closers_is_read() -> None:
    broken = [f"<tool_call>run<arg_key>cmd</arg_key><arg_value>{number}</tool_call>" for number in range(6)]
    output = _parse("</think>" + "".join(broken))

    assert output.calls == [("run", {"cmd": str(number)}) for number in range(6)]
    assert output.outcomes == ["recovered"] * 6


def test_a_lone_value_opener_in_a_text_costs_neither_the_text_nor_the_calls_behind_it() -> None:
    raw = "</think>" + call_text("write_file", {"path": "p", "content": "x<arg_value>y"}) + RUN + "Done."
    output = _parse(raw)

    assert output.calls == [("write_file", {"path": "p", "content": "x<arg_value>y"}), ("run", {"cmd": "ls"})]
    assert output.content == "Done."
    assert output.outcomes == ["valid", "valid"]


def test_text_that_is_read_twice_is_not_taken_for_the_cut_marker_at_the_end() -> None:
    after = "<tool_call></<arg_value></"
    output = _parse("</think>" + call_text("run", {"cmd": "x<arg_value>y"}) + after)

    assert output.calls == [("run", {"cmd": "x<arg_value>y"})]
    assert output.content == after


def test_a_closed_call_followed_by_text_and_another_closer_was_not_closed() -> None:
    text = "a</arg_value></tool_call>\nb"
    output = _parse("</think>" + call_text("run", {"cmd": text}))

    assert output.calls == [("run", {"cmd": text})]
    assert [note.code for note in output.notes] == ["marker_in_value"]


def test_a_closer_far_behind_a_call_does_not_open_it_again() -> None:
    after = "x" * 2000 + " `</arg_value>` closes a value"
    output = _parse("</think>" + RUN + after)

    assert (output.calls, output.content) == ([("run", {"cmd": "ls"})], after)


def test_prose_about_a_closer_right_behind_a_call_stays_content() -> None:
    after = " `</arg_value>` closes a value"
    output = _parse("</think>" + RUN + after)

    assert (output.calls, output.content) == ([("run", {"cmd": "ls"})], after)


def test_a_call_in_the_reasoning_may_contain_the_end_of_the_reasoning() -> None:
    """If the output never leaves the reasoning otherwise, that marker is text of the value."""
    output = _parse("Writing.<tool_call>run<arg_key>cmd</arg_key><arg_value>echo '</think>'</arg_value></tool_call>")

    assert output.calls == [("run", {"cmd": "echo '</think>'"})]
    assert (output.reasoning, output.content) == ("Writing.", "")


def test_two_calls_in_a_thought_are_no_calls_and_each_is_noted() -> None:
    thought = f"first {RUN} then {call_text('noargs', {})} or"
    output = _parse(thought + "</think>" + RUN)

    assert (output.reasoning, output.calls) == (thought, [("run", {"cmd": "ls"})])
    assert [(note.code, note.name) for note in output.notes] == [
        ("call_in_reasoning", "run"),
        ("call_in_reasoning", "noargs"),
    ]


def test_names_may_be_any_that_the_request_declares() -> None:
    name = "my tool (v2)"
    output = _parse("</think>" + call_text(name, {"a": "x"}), [tool(name, {"a": {"type": "string"}})])

    assert output.calls == [(name, {"a": "x"})]
    assert output.outcomes == ["valid"]
