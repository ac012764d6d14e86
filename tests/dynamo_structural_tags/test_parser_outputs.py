"""Outputs of GLM models as they were observed, with the right values, in every cut that a stream may make."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from glm_turns import Case, cases, equal_json

from dynamo_structural_tags.parser import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    Finish,
    GlmStream,
    ParsedOutput,
    ReasoningDelta,
    collect,
    parse_output,
)

CASES = cases()
IDS = [case.id for case in CASES]


def _parse(case: Case, chunks: list[str] | None = None) -> ParsedOutput:
    return parse_output(case.raw, case.tools, finish_reason=case.finish, tool_choice=case.tool_choice, chunks=chunks)


def _stream(case: Case, chunks: list[str]) -> list[list[Event]]:
    """The events of each piece, and of the end."""
    stream = GlmStream(case.tools, case.tool_choice)
    return [*(stream.feed(piece) for piece in chunks), stream.finish(case.finish)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_client_receives_the_right_values(case: Case) -> None:
    output = _parse(case)

    assert [name for name, _ in output.calls] == [name for name, _ in case.calls]
    for (_, got), (_, right) in zip(output.calls, case.calls, strict=True):
        assert equal_json(got, right)
    assert output.finish_reason == case.finish_reason
    assert case.content is None or output.content == case.content


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_cut_into_two_pieces_changes_anything(case: Case) -> None:
    whole = _parse(case)

    for cut in range(len(case.raw) + 1):
        assert _parse(case, [case.raw[:cut], case.raw[cut:]]) == whole


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_cut_into_many_pieces_changes_anything(case: Case) -> None:
    whole = _parse(case)
    chance = random.Random(case.id)

    assert _parse(case, list(case.raw)) == whole
    for _ in range(100):
        cuts = sorted(chance.choices(range(len(case.raw) + 1), k=chance.randint(2, 12)))
        pieces = [case.raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.raw)], strict=True)]
        assert _parse(case, pieces) == whole


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("size", [1, 4, 13])
def test_a_streams_events_come_in_order_and_say_what_the_whole_output_says(case: Case, size: int) -> None:
    pieces = [case.raw[start : start + size] for start in range(0, len(case.raw), size)]
    events = [event for batch in _stream(case, pieces) for event in batch]
    whole = _parse(case)

    assert collect(events) == whole
    assert isinstance(events[-1], Finish)
    open_call: int | None = None
    fragments: dict[int, str] = {}
    ended = []
    for event in events:
        match event:
            case CallStart(index, _):
                assert open_call is None
                assert index == len(fragments)
                open_call, fragments[index] = index, ""
            case ArgumentsDelta(index, text):
                assert index == open_call
                assert text
                fragments[index] += text
            case CallEnd(index, name, outcome):
                assert index == open_call
                open_call = None
                if outcome != "truncated":
                    ended.append((name, json.loads(fragments[index])))
            case ReasoningDelta(text) | ContentDelta(text):
                assert text
                assert open_call is None
    assert open_call is None
    assert ended == whole.calls


def test_a_large_string_comes_in_as_many_pieces_as_the_model_wrote() -> None:
    content = 'if a < b:\n\tprint("</ é 🚀 \\n")\n' * 3000  # about 100 KB
    case = next(case for case in CASES if case.id == "s_lt")
    head = "ok</think><tool_call>write_file<arg_key>content</arg_key><arg_value>"
    stream = GlmStream(case.tools)
    stream.feed(head)

    sent = longest = arrived = 0
    for start in range(0, len(content), 4):
        for event in stream.feed(content[start : start + 4]):
            assert isinstance(event, ArgumentsDelta)
            text = json.loads(f'"{event.json}"')
            assert content.startswith(text, arrived)
            arrived += len(text)
            sent += 1
            longest = max(longest, len(event.json))
        assert arrived >= start + 4 - len("</arg_value")  # all but a possible beginning of a marker

    assert sent > len(content) / 4 * 0.9
    assert longest <= 40
    end = collect([*stream.feed("</arg_value><arg_key>path</arg_key><arg_value>a</arg_value></tool_call>")])
    assert end.calls == []  # its fragments are in `text`
    assert stream.finish("stop") == [
        ArgumentsDelta(0, '"'),
        ArgumentsDelta(0, "}"),
        CallEnd(0, "write_file", "valid"),
        Finish("tool_calls"),
    ]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["string", "null"]}, "nullify this\n" * 50),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "a long text\n" * 50),
        ({"type": ["string", "number"]}, "1.5 litres of " * 50),
        ({"type": "string", "nullable": True}, "text\n" * 50),
        ({}, "plain text " * 50),
    ],
)
def test_an_optional_string_streams_as_soon_as_it_can_be_nothing_else(schema: Any, value: str) -> None:
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": {"v": schema}}}}]
    stream = GlmStream(tools)
    stream.feed("</think><tool_call>f<arg_key>v</arg_key><arg_value>")

    deltas = [event for start in range(0, len(value), 4) for event in stream.feed(value[start : start + 4])]

    assert len(deltas) > len(value) / 4 - 3
    assert all(isinstance(event, ArgumentsDelta) for event in deltas)
