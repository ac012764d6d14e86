"""The tool parser glm47_safe in vLLM's own parsing code: every observed output, whole and in every cut.

`PARSER_CUTS=1` tries every cut into two pieces; without it every seventh.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from glm_turns import Case, call_text, cases, common_tools, equal_json
from vllm_turns import Answer, Server, choice_of, streamed_choice_of

from dynamo_structural_tags import register
from dynamo_structural_tags.patches import ANSWERS, REGISTER
from glm53.model import make

CASES = cases()
EVERY = 1 if os.environ.get("PARSER_CUTS") else 7
#: vLLM ends the reasoning at a call, and so does its grammar: there this call is one.
CALLED = {"call_in_think": ([["run", {"cmd": "x"}]], " maybe</think>Hi")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    register()
    folder = tmp_path_factory.mktemp("parser") / "tiny"
    make(folder, layers=1)
    made = Server(folder)
    REGISTER.apply(ANSWERS)  # loading the parser did, unless other tests have put vLLM back since
    return made


CUT = "ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>ls"


def _case(raw: str, finish: str = "stop", tool_choice: Any = "auto", tools: Any = None) -> Case:
    return Case("own", raw, common_tools() if tools is None else tools, finish, tool_choice, [], None, "")


def _codes(answer: Answer) -> list[str]:
    return [note["code"] for note in answer.notes]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_client_receives_the_right_values_whole_and_in_every_cut(case: Case, server: Server) -> None:
    calls, content = CALLED.get(case.id, ([list(call) for call in case.calls], case.content))

    whole = server.whole(case)

    assert equal_json([[name, json.loads(arguments)] for name, arguments in whole.calls], calls)
    assert content is None or whole.content == content
    units = server.units(case.raw)
    cuts = [["".join(units[:cut]), "".join(units[cut:])] for cut in range(0, len(units) + 1, EVERY)]
    chance = random.Random(case.id)
    for _ in range(3):
        places = sorted(chance.choices(range(len(units) + 1), k=5))
        cuts.append(["".join(units[a:b]) for a, b in zip([0, *places], [*places, len(units)], strict=True)])
    for pieces in [*cuts, units]:
        assert server.streamed(case, pieces) == whole, pieces


def test_d25_arguments_stream_as_the_model_writes_them(server: Server) -> None:
    text = "x = 1  # é <b>\n" * 40
    case = _case("ok</think>" + call_text("write_file", {"path": "a.py", "content": text}))
    deltas = [
        call.function.arguments
        for delta in server.deltas(case, server.units(case.raw))
        for call in delta.tool_calls
        if call.function.arguments
    ]

    assert json.loads("".join(deltas)) == {"path": "a.py", "content": text}
    assert len(deltas) > len(text) * 0.8


@pytest.mark.parametrize(
    ("raw", "finish", "choice", "codes", "names"),
    [
        ("ok</think>Hi" + call_text("bash", {"cmd": "ls"}), "stop", "auto", ["undeclared_tool"], ["bash"]),
        (
            "ok</think>" + call_text("noargs", {}),
            "stop",
            {"type": "function", "function": {"name": "run"}},
            ["tool_not_allowed"],
            ["noargs"],
        ),
        ("ok</think>Hi" + call_text("run", {"cmd": "ls"}), "stop", "none", ["call_under_none"], []),
        ("ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>l", "length", "auto", ["truncated_call"], []),
        ("ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>l", "stop", "auto", ["truncated_call"], []),
        (
            "ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value>",
            "stop",
            "auto",
            ["missing_call_close"],
            ["run"],
        ),
        (
            "ok</think><tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value>",
            "length",
            "auto",
            ["truncated_call"],
            [],
        ),
        ("ok</think>Hi", "stop", "required", ["no_call"], []),
    ],
)
def test_nothing_is_dropped_without_a_reason_that_the_client_can_read(
    raw: str, finish: str, choice: Any, codes: list[str], names: list[str], server: Server
) -> None:
    case = _case(raw, finish, choice)

    for answer in (server.whole(case), server.streamed(case, server.units(raw)), server.streamed(case, [raw])):
        assert [name for name, _ in answer.calls] == names
        if choice == "none" and not answer.notes:
            continue  # vLLM does not ask the parser
        assert _codes(answer) == codes
        assert all(note["text"] for note in answer.notes)
    if choice == "none":
        assert server.whole(case).content == raw.removeprefix("ok</think>")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("raw", "wanted", "shown", "names", "codes"),
    [
        (CUT + "</arg_value>", {"stop": ["</tool_call>"]}, "", ["run"], []),
        (
            CUT + "</arg_value>",
            {"stop": "</tool_call>", "include_stop_str_in_output": True},
            "</tool_call>",
            ["run"],
            [],
        ),
        (CUT + "</arg_value>", {"stop": ["x", "</tool_call>"]}, "", ["run"], []),
        (CUT, {"stop": ["</arg_value>"]}, "", ["run"], ["missing_call_close"]),
        (CUT, {"stop": ["END"]}, "", [], ["truncated_call"]),
        ("ok</think><tool_call>noargs", {"stop": ["</tool_call>"]}, "", ["noargs"], ["missing_call_close"]),
    ],
)
def test_a_call_that_ends_with_a_stop_string_of_the_clients_is_complete(
    raw: str,
    wanted: dict[str, Any],
    shown: str,
    names: list[str],
    codes: list[str],
    streamed: bool,
    server: Server,
) -> None:
    """vLLM takes the stop string off the text and tells the parser nothing; before, such a call was cut off."""
    stops = wanted["stop"]
    stop = stops if isinstance(stops, str) else stops[-1]
    case = _case(raw)
    request = server.request(case, **wanted)
    parser = server.parsers(server.tokenizer, request.tools)
    tokens = server.tokenizer.encode(raw, add_special_tokens=False)
    ending = server.tokenizer.encode(stop, add_special_tokens=False)

    if streamed:
        prompt = server.tokenizer.encode("<|assistant|><think>", add_special_tokens=False)
        deltas = [
            parser.parse_delta(raw, tokens, request, prompt_token_ids=prompt, finished=False),
            parser.parse_delta(shown, ending, request, prompt_token_ids=prompt, finished=True),
        ]
        cut = {note["call"] for note in parser.tool_parser.notes if note["code"] == "truncated_call"}
        made = [call for delta in deltas if delta is not None for call in delta.tool_calls or ()]
        found = [call.function.name for call in made if call.function.name and call.index not in cut]
    else:
        _, _, calls = parser.parse(raw + shown, request, enable_auto_tools=True, model_output_token_ids=tokens + ending)
        found = [call.name for call in calls or ()]

    assert [note["code"] for note in parser.tool_parser.notes] == codes
    assert found == names


def test_a_stop_token_of_the_clients_closes_a_call_as_well(server: Server) -> None:
    case = _case(CUT + "</arg_value>")
    (closer,) = server.tokenizer.encode("</tool_call>", add_special_tokens=False)
    request = server.request(case, stop_token_ids=[closer])
    parser = server.parsers(server.tokenizer, request.tools)
    tokens = [*server.tokenizer.encode(case.raw, add_special_tokens=False), closer]

    _, _, calls = parser.parse(case.raw, request, enable_auto_tools=True, model_output_token_ids=tokens)

    assert [(call.name, call.arguments) for call in calls] == [("run", '{"cmd": "ls"}')]
    assert parser.tool_parser.notes == []


@pytest.mark.parametrize(("reason", "then"), [("stop", "length"), ("tool_calls", "length"), ("length", "length")])
def test_an_answer_that_ends_inside_a_call_has_the_reason_length(reason: str, then: str, server: Server) -> None:
    from vllm.entrypoints.generate.base.protocol import DeltaMessage
    from vllm.entrypoints.openai.chat_completion.protocol import ChatMessage

    cut = [{"code": "truncated_call", "text": "run: the output ended inside a call"}]
    message, delta = ChatMessage(role="assistant", tool_call_notes=cut), DeltaMessage(tool_call_notes=cut)
    odd = ChatMessage(role="assistant", tool_call_notes=[{"code": "stray_markup", "text": ""}])

    assert choice_of(message, reason).finish_reason == then
    assert streamed_choice_of(delta, reason).finish_reason == then
    assert choice_of(odd, reason).finish_reason == reason
    assert choice_of(ChatMessage(role="assistant"), reason).finish_reason == reason
    assert choice_of(message, reason).model_dump()["message"]["tool_call_notes"] == cut
    assert streamed_choice_of(delta, reason).model_dump(exclude_unset=True)["delta"]["tool_call_notes"] == cut


def test_without_thinking_the_answer_is_content_and_calls(server: Server) -> None:
    case = _case("Hi" + call_text("run", {"cmd": "ls"}))
    request = server.request(case, chat_template_kwargs={"enable_thinking": False})
    parser = server.parsers(server.tokenizer, request.tools, chat_template_kwargs={"enable_thinking": False})

    reasoning, content, calls = parser.parse(case.raw, request, enable_auto_tools=True)

    assert (reasoning, content) == (None, "Hi")
    assert [(call.name, call.arguments) for call in calls] == [("run", '{"cmd": "ls"}')]


def test_vllms_own_parsers_are_not_touched(server: Server) -> None:
    """The records of ANSWERS are in place, and another tool parser has none of what they look for."""
    stock = Server(server.model, "glm47")
    case = _case("ok</think>Hi" + call_text("run", {"cmd": "ls"}))
    request = stock.request(case)
    parser = stock.parsers(stock.tokenizer, request.tools)

    reasoning, content, calls = parser.parse(case.raw, request, enable_auto_tools=True)

    assert set(ANSWERS) <= {row.id for row in REGISTER.report().rows if row.status in ("applied", "already")}
    assert (reasoning, content, [call.arguments for call in calls]) == ("ok", "Hi", ['{"cmd": "ls"}'])
    assert not hasattr(parser.tool_parser, "notes")


def test_the_markers_reach_the_parser_and_tags_stay_stocks_while_the_plugin_is_off(server: Server) -> None:
    case = _case("")
    request = server.request(case, tool_choice="required")
    parser = server.parsers(server.tokenizer, request.tools)

    adjusted = parser.adjust_request(request)

    assert adjusted.skip_special_tokens is False
    assert '"style": "glm_xml"' in adjusted.structured_outputs.structural_tag
