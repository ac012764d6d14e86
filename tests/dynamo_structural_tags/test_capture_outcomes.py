"""Outcomes of the calls in a captured answer: the tools come from the prompt, the calls from the output."""

from __future__ import annotations

import json
from importlib.metadata import entry_points

import pytest

from dynamo_structural_tags.capture import outcomes

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"


def _prompt(*tools: object, end: str = "<|assistant|><think>") -> str:
    listed = "\n".join(json.dumps(tool) for tool in tools)
    offer = f"<|system|>\n# Tools\n\n<tools>\n{listed}\n</tools>\n\nCall them." if tools else ""
    return f"[gMASK]<sop>{offer}<|user|>Weather? <tools>\nnone\n</tools>{end}"


@pytest.mark.parametrize(
    ("output", "finish", "told"),
    [
        (f"hm</think>{CALL}<|observation|>", "stop", [("weather", "valid")]),
        (f"hm</think>{CALL}{CALL}", "stop", [("weather", "valid")] * 2),
        (f"hm</think>{CALL.replace('city', 'town')}", "stop", [("weather", "invalid")]),
        (f"hm</think>{CALL.replace('weather', 'news')}", "stop", [("news", "undeclared")]),
        (f"hm</think>{CALL.replace('</arg_key>', '')}", "stop", [("weather", "recovered")]),
        (f"hm</think>{CALL[:50]}", "length", [("weather", "truncated")]),
        ("hm</think>It rains.<|user|>", "stop", []),
    ],
)
def test_each_call_has_the_parsers_outcome(output: str, finish: str, told: list[tuple[str, str]]) -> None:
    found = outcomes(_prompt(WEATHER), output, finish)

    assert found is not None
    assert [(one["name"], one["outcome"]) for one in found] == told


def test_a_prompt_that_turned_thinking_off_is_answered_without_a_thought() -> None:
    prompt = _prompt(WEATHER, end="<|assistant|><think></think>")

    assert outcomes(prompt, CALL, "stop") == [{"name": "weather", "outcome": "valid"}]


def test_functions_without_their_wrapper_are_read_as_well_and_damaged_lines_passed_over() -> None:
    prompt = _prompt(WEATHER["function"]).replace("</tools>", "{no json\n</tools>", 1)

    assert outcomes(prompt, f"</think>{CALL}", "stop") == [{"name": "weather", "outcome": "valid"}]


def test_a_call_without_tools_is_no_call_that_came_back() -> None:
    assert outcomes(_prompt(), f"</think>{CALL}", "stop") == []


def test_the_prompt_of_another_model_is_left_to_others() -> None:
    assert outcomes("<|im_start|>system\nYou are", CALL, "stop") is None


def test_capture_finds_it_by_its_entry_point() -> None:
    (entry,) = entry_points(group="rl_capture.outcomes")

    assert (entry.name, entry.load()) == ("dynamo_structural_tags", outcomes)
