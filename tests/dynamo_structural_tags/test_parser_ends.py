"""How an output ends: in the middle of a character, and with a stop string of the client's."""

from __future__ import annotations

from typing import Any

import pytest
from glm_turns import call_text, common_tools

from dynamo_structural_tags.parser import GlmStream, collect, parse_output

ARGUMENT = "ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>ls"
COMPLETE = ARGUMENT + "</arg_value>"
PAIR = "ok</think><tool_call>write_file<arg_key>path</arg_key><arg_value>a"
#: Every kind of bytes that are no UTF-8: a lone continuation, cut characters, overlong forms, a surrogate, too large.
BROKEN = [
    b"\x80",
    b"\xc3",
    b"\xe4\xb8",
    b"\xf0\x9f\x98",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xff\xfe",
]


def _calls(text: str | bytes, **options: Any) -> tuple[list[Any], list[str], str, list[str]]:
    found = parse_output(text, common_tools(), **options)
    return [list(call) for call in found.calls], found.outcomes, found.finish_reason, [n.code for n in found.notes]


@pytest.mark.parametrize("tail", BROKEN)
@pytest.mark.parametrize("around", ["é{}x", "{}", "</{}<"])
def test_no_byte_of_a_value_is_lost(tail: bytes, around: str) -> None:
    before, after = around.encode().split(b"{}")
    value = before + tail + after
    raw = b"ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>" + value + b"</arg_value></tool_call>"

    for chunks in (None, [raw[i : i + 1] for i in range(len(raw))], [raw[:60], raw[60:]]):
        found = parse_output(raw, common_tools(), chunks=chunks)

        assert found.calls[0][1]["cmd"].encode("utf-8", "surrogateescape") == value
        assert found.outcomes == ["valid"]


def test_the_json_of_bytes_that_are_no_text_can_be_sent() -> None:
    events = GlmStream(common_tools()).feed(b"ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>a\xff")

    assert "".join(getattr(event, "json", "") for event in events) == '{"cmd": "a\\udcff'


@pytest.mark.parametrize("tail", BROKEN)
def test_content_that_ends_inside_a_character_keeps_its_bytes(tail: bytes) -> None:
    found = parse_output(b"ok</think>Hi " + tail, common_tools())

    assert found.content.encode("utf-8", "surrogateescape") == b"Hi " + tail


def test_bytes_and_text_may_come_in_turns() -> None:
    stream = GlmStream(common_tools())

    events = [*stream.feed(b"ok</think>\xc3"), *stream.feed("x"), *stream.feed(b"\xc3"), *stream.feed(b"\xa9")]

    assert collect([*events, *stream.finish()]).content == "\udcc3xé"


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (COMPLETE, "</tool_call>"),
        (ARGUMENT, "</arg_value></tool_call>"),
        (COMPLETE, "\n</tool_call>"),
    ],
)
def test_a_call_that_a_stop_string_closed_is_complete_and_valid(text: str, stop: str) -> None:
    assert _calls(text, stopped_by=stop) == ([["run", {"cmd": "ls"}]], ["valid"], "tool_calls", [])


def test_a_call_whose_last_value_a_stop_string_closed_is_complete_if_nothing_is_missing() -> None:
    assert _calls(ARGUMENT, stopped_by="</arg_value>") == (
        [["run", {"cmd": "ls"}]],
        ["recovered"],
        "tool_calls",
        ["missing_call_close"],
    )
    assert _calls(PAIR, stopped_by="</arg_value>") == ([], [], "length", ["truncated_call"])


@pytest.mark.parametrize("stop", ["s", "</", "END", "<|user|>"])
def test_a_stop_string_inside_a_value_cuts_the_call(stop: str) -> None:
    assert _calls(ARGUMENT, stopped_by=stop) == ([], [], "length", ["truncated_call"])


def test_without_the_stop_string_a_call_up_to_its_end_is_recovered() -> None:
    assert _calls(COMPLETE) == ([["run", {"cmd": "ls"}]], ["recovered"], "tool_calls", ["missing_call_close"])


@pytest.mark.parametrize("text", ["ok</think>Hi ", "ok</think>" + call_text("run", {"cmd": "ls"}), "ok"])
def test_outside_of_a_call_a_stop_string_is_never_shown(text: str) -> None:
    assert parse_output(text, common_tools(), stopped_by="</tool_call>") == parse_output(text, common_tools())
