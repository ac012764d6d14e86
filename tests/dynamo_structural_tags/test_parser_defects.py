"""The defects of released parsers that concern reading an output, each with the value that is right.

D1 to D26 are inputs that Dynamo 1.6.1's two parsers or vLLM 0.31 to 0.33's get wrong. Not here, because no parser can
settle them alone: the grammar's part of D8 and D22 (it should not allow what has to be repaired here), D13's forced
choice without a structural tag, where the engine is guided to bare JSON (the hook's), and D25 and D26's way through a
server (the hooks').
"""

from __future__ import annotations

from typing import Any

import pytest
from glm_turns import call_text, common_tools, equal_json

from dynamo_structural_tags.parser import ArgumentsDelta, CallStart, GlmStream, ParsedOutput, parse_output

NAMED = {"type": "function", "function": {"name": "run"}}


def _parse(raw: str, **options: Any) -> ParsedOutput:
    """Parse in one piece and by single characters; both must agree."""
    whole = parse_output(raw, common_tools(), **options)
    assert parse_output(raw, common_tools(), chunks=list(raw), **options) == whole
    return whole


def _codes(output: ParsedOutput) -> set[str]:
    return {note.code for note in output.notes}


def _content(text: str) -> str:
    return "ok</think>" + call_text("write_file", {"path": "a.txt", "content": text})


def test_d1_white_space_between_key_and_value_is_no_value() -> None:
    output = _parse("ok</think><tool_call>run<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value></tool_call>")

    assert output.calls == [("run", {"cmd": "ls"})]
    assert output.outcomes == ["valid"]


@pytest.mark.parametrize("text", ["a <think> b </think> c", "<think>", "</think>", "</think></think><think>"])
def test_d2_thought_markers_inside_a_value_are_text(text: str) -> None:
    output = _parse(_content(text))

    assert output.calls == [("write_file", {"path": "a.txt", "content": text})]
    assert (output.reasoning, output.content) == ("ok", "")


@pytest.mark.parametrize(
    "text", ["see </tool_call> end", "</tool_call>", "x</tool_call>\n", "</tool_call></tool_call>"]
)
def test_d3_the_calls_closer_inside_a_value_is_text(text: str) -> None:
    output = _parse(_content(text))

    assert output.calls == [("write_file", {"path": "a.txt", "content": text})]
    assert output.content == ""


@pytest.mark.parametrize(
    "text", ["print('</arg_value>') tail", "</arg_value>", "</arg_value> x </arg_value>", "a</arg_value>\n"]
)
def test_d4_the_values_closer_inside_a_string_is_text(text: str) -> None:
    assert _parse(_content(text)).calls == [("write_file", {"path": "a.txt", "content": text})]


@pytest.mark.parametrize(
    "text", ["</arg_value>", "</arg_value></tool_call>", "</arg_value><arg_key>a</arg_key><arg_value>"]
)
def test_d5_the_values_closer_inside_an_object_is_text(text: str) -> None:
    output = _parse("ok</think>" + call_text("typed", {"o": {"k": text}, "a": [text]}) + "Done.")

    assert output.calls == [("typed", {"o": {"k": text}, "a": [text]})]
    assert output.content == "Done."


def test_d6_a_call_is_executed_if_the_reasoning_never_ends() -> None:
    output = _parse("I will run it.<tool_call>run<arg_key>cmd</arg_key><arg_value>a</arg_value></tool_call>")

    assert output.calls == [("run", {"cmd": "a"})]
    assert (output.reasoning, output.content, output.finish_reason) == ("I will run it.", "", "tool_calls")
    assert _codes(output) == {"call_before_think_end"}
    assert output.outcomes == ["recovered"]


@pytest.mark.parametrize(
    "inside",
    [
        call_text("run", {"cmd": "x"}),
        "<tool_call>run<arg_key>cmd</arg_key><arg_value>x",
        "<tool_call>typed<arg_key>i</arg_key><arg_value>5</arg_value>",
        "<tool_call>run<arg_key>cm",
        "<tool_call>run<arg_key>cmd</arg_key>",
        "<tool_call>run",
    ],
)
def test_d7_a_call_inside_reasoning_that_ends_is_a_thought(inside: str) -> None:
    output = _parse(f"plan: {inside} maybe</think>Hi")

    assert output.calls == []
    assert (output.reasoning, output.content, output.finish_reason) == (f"plan: {inside} maybe", "Hi", "stop")


def test_d7_a_thought_call_is_noted_and_a_later_call_is_a_call() -> None:
    call = call_text("run", {"cmd": "x"})
    output = _parse(f"plan: {call} maybe</think>Hi {call}")

    assert output.calls == [("run", {"cmd": "x"})]
    assert output.reasoning == f"plan: {call} maybe"
    assert _codes(output) == {"call_in_reasoning"}


@pytest.mark.parametrize(
    ("key", "text", "value"), [("es", "\n1\n", "1"), ("e", " red\t", "red"), ("e", " 2", 2), ("c", "x\n", "x")]
)
def test_d8_white_space_around_a_listed_value_is_taken_off(key: str, text: str, value: Any) -> None:
    output = _parse("ok</think>" + call_text("typed", {key: text}))

    # A string is allowed for `e`, so " 2" can be nothing but 2 among its values all the same.
    assert equal_json(output.calls, [("typed", {key: value})])
    assert output.outcomes == ["recovered"]


def test_d9_a_call_of_an_undeclared_tool_is_returned_with_a_note() -> None:
    output = _parse("ok</think>Let me look.\n" + call_text("bash", {"cmd": "ls"}))

    assert output.calls == [("bash", {"cmd": "ls"})]
    assert (output.content, output.finish_reason) == ("Let me look.\n", "tool_calls")
    assert [(note.code, note.call, note.name) for note in output.notes] == [("undeclared_tool", 0, "bash")]
    assert output.outcomes == ["undeclared"]


@pytest.mark.parametrize(
    "choice",
    [
        NAMED,
        {"type": "function", "name": "run"},
        {"type": "tool", "name": "run"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "run"}]},
    ],
)
def test_d10_a_call_of_another_tool_than_the_named_one_is_returned_with_a_note(choice: Any) -> None:
    output = _parse("ok</think><tool_call>noargs</tool_call>", tool_choice=choice)

    assert (output.calls, output.finish_reason) == ([("noargs", {})], "tool_calls")
    assert [(note.code, note.call, note.name) for note in output.notes] == [("tool_not_allowed", 0, "noargs")]
    assert output.outcomes == ["undeclared"]


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_d11_a_call_under_none_stays_in_the_content_with_a_note(choice: Any) -> None:
    call = call_text("run", {"cmd": "ls"})
    output = _parse("ok</think>Then " + call, tool_choice=choice)

    assert output.calls == []
    assert (output.reasoning, output.content, output.finish_reason) == ("ok", "Then " + call, "stop")
    assert [(note.code, note.name) for note in output.notes] == [("call_under_none", "run")]


@pytest.mark.parametrize("tools", [None, []])
def test_d12_a_call_without_tools_stays_in_the_content_with_a_note(tools: Any) -> None:
    call = call_text("run", {"cmd": "ls"})
    output = parse_output("ok</think>" + call, tools)

    assert (output.calls, output.content, output.finish_reason) == ([], call, "stop")
    assert [(note.code, note.name) for note in output.notes] == [("call_without_tools", "run")]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_d13_a_forced_call_in_the_models_own_format_is_a_call(choice: Any) -> None:
    output = _parse("ok</think>" + call_text("run", {"cmd": "a<b"}), tool_choice=choice)

    assert output.calls == [("run", {"cmd": "a<b"})]
    assert output.notes == []


def test_d14_text_between_and_after_calls_is_content() -> None:
    call = call_text("run", {"cmd": "a"})
    output = _parse(f"ok</think>First.{call}Then.{call}Done.")

    assert output.calls == [("run", {"cmd": "a"})] * 2
    assert output.content == "First.Then.Done."


@pytest.mark.parametrize(
    "text",
    [
        'The tag `<tool_call>` opens a call; "<tool_call>" too',
        "Write `<tool_call>name</tool_call>`, then the result",
        "<tool_call>",
        "<tool_call> and <tool_call>\n\n</tool_call>",
        "<tool_call>two words<arg_key>a</arg_key>",
    ],
)
def test_d15_a_call_marker_that_opens_no_call_is_text(text: str) -> None:
    output = _parse("ok</think>" + text)

    assert (output.calls, output.content, output.finish_reason) == ([], text, "stop")
    assert _codes(output) <= {"marker_as_text"}


def test_d16_a_call_marker_in_a_sentence_does_not_cut_it() -> None:
    output = _parse("ok</think>Use the <tool_call> tag")

    assert (output.calls, output.content, output.finish_reason) == ([], "Use the <tool_call> tag", "stop")


@pytest.mark.parametrize("layout", ["", "\n"])
def test_d17_a_value_without_its_opener_is_a_value(layout: str) -> None:
    output = _parse(f"ok</think><tool_call>run<arg_key>cmd</arg_key>{layout}ls</arg_value></tool_call>")

    assert output.calls == [("run", {"cmd": "ls"})]
    assert _codes(output) == {"missing_value_open"}
    assert output.outcomes == ["recovered"]


def test_d18_a_stray_closer_is_no_part_of_the_name() -> None:
    output = _parse("ok</think><tool_call>noargs</arg_value></tool_call>")

    assert output.calls == [("noargs", {})]
    assert _codes(output) == {"stray_markup"}
    assert output.outcomes == ["recovered"]


@pytest.mark.parametrize(
    "raw",
    ["<arg_key>cmd</arg_key><arg_value>ls -l", "<arg_key>cmd</arg_key><arg_value>ls</arg_value>", "<arg_key>cm", ""],
)
@pytest.mark.parametrize("reason", ["length", "abort", "content_filter"])
def test_d19_a_call_that_max_tokens_cuts_is_not_returned_but_reported(raw: str, reason: str) -> None:
    output = _parse("ok</think><tool_call>run" + raw, finish_reason=reason)

    assert output.calls == []
    assert output.finish_reason == reason
    assert _codes(output) == {"truncated_call"}
    assert [note.name for note in output.notes] == ["run"]


def test_d19_the_reason_length_stays_beside_complete_calls() -> None:
    output = _parse("ok</think>" + call_text("run", {"cmd": "a"}) + "<tool_call>run<arg_key>", finish_reason="length")

    assert output.calls == [("run", {"cmd": "a"})]
    assert output.finish_reason == "length"


@pytest.mark.parametrize("end", ["", "\n", "</tool_ca", "</"])
def test_d20_a_call_without_its_closer_is_complete_if_the_engine_stopped(end: str) -> None:
    output = _parse("ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value>" + end)

    assert (output.calls, output.finish_reason) == ([("run", {"cmd": "ls"})], "tool_calls")
    assert _codes(output) == {"missing_call_close"}
    assert output.outcomes == ["recovered"]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [("e", "2", 2), ("e", "1", "1"), ("e", "red", "red"), ("isn", "7", 7), ("isn", "x", "x"), ("any", "5", 5)],
)
def test_d21_the_schema_tells_a_number_from_a_string(key: str, text: str, value: Any) -> None:
    output = _parse("ok</think>" + call_text("typed", {key: text}))

    assert equal_json(output.calls, [("typed", {key: value})])
    assert output.outcomes == ["valid"]


@pytest.mark.parametrize("sign", ["\n", "\t", "\x0e", "\x00"])
def test_d22_a_raw_control_character_in_a_json_string_is_repaired(sign: str) -> None:
    output = _parse(
        f'ok</think><tool_call>typed<arg_key>o</arg_key><arg_value>{{"k": "a{sign}b"}}</arg_value></tool_call>'
    )

    assert output.calls == [("typed", {"o": {"k": f"a{sign}b"}})]
    assert _codes(output) == {"value_repaired"}


def test_d23_thought_markers_in_the_content_are_text() -> None:
    assert _parse("ok</think>see <think>x</think> y").content == "see <think>x</think> y"


def test_d24_the_last_of_two_equal_keys_counts_and_the_stream_stays_json() -> None:
    two = "<arg_key>cmd</arg_key><arg_value>a</arg_value><arg_key>cmd</arg_key><arg_value>b</arg_value>"
    output = _parse(f"ok</think><tool_call>run{two}</tool_call>")

    assert output.calls == [("run", {"cmd": "b"})]
    assert _codes(output) == {"duplicate_argument"}


def test_d25_arguments_come_while_the_model_writes_them() -> None:
    stream = GlmStream(common_tools())
    assert stream.feed("ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>")[-3:] == [
        CallStart(0, "run"),
        ArgumentsDelta(0, '{"cmd": '),
        ArgumentsDelta(0, '"'),
    ]
    assert stream.feed('echo "') == [ArgumentsDelta(0, 'echo \\"')]
    assert stream.feed("é\n") == [ArgumentsDelta(0, "é\\n")]
    assert stream.feed("a <") == [ArgumentsDelta(0, "a ")]
    assert stream.feed("/b") == [ArgumentsDelta(0, "</b")]


def test_d26_parallel_calls_in_pieces_of_many_tokens_keep_their_arguments() -> None:
    raw = "ok</think>" + call_text("run", {"cmd": "a"}) + call_text("run", {"cmd": "b"})

    for size in range(1, 80):
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
        output = parse_output("", common_tools(), chunks=pieces)
        assert (output.calls, output.content) == ([("run", {"cmd": "a"}), ("run", {"cmd": "b"})], "")
