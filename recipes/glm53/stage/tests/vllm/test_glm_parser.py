import json
from types import SimpleNamespace

import pytest
from vllm.tool_parsers import ToolParserManager

TOOLS = [
    {"name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
    {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}},
]


class Tokenizer:
    """A token a character, and one that ends an answer."""

    all_special_ids = (0,)

    def get_vocab(self):
        return {"<|user|>": 0}

    def decode(self, ids, **unused):
        return "".join("<|user|>" if one == 0 else chr(one) for one in ids)


def request_of(choice="auto"):
    tools = [SimpleNamespace(type="function", function=SimpleNamespace(**one)) for one in TOOLS]
    return SimpleNamespace(tools=tools, tool_choice=choice, stop=None, stop_token_ids=None)


def call(name, **arguments):
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


def parser():
    return ToolParserManager.get_tool_parser("glm")(Tokenizer())


def whole(text, request):
    found = parser().extract_tool_calls(text, request)
    calls = [(one.function.name, json.loads(one.function.arguments)) for one in found.tool_calls]
    return calls, found.content or ""


def streamed(text, request, size):
    made, calls, content = parser(), [], ""
    deltas = []
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        ids = [ord(one) for one in piece] + ([0] if at + size >= len(text) else [])
        deltas.append(made.extract_tool_calls_streaming("", "", piece, [], [], ids, request))
    deltas.append(made.finish_streaming())
    for delta in filter(None, deltas):
        content += delta.content or ""
        for one in delta.tool_calls:
            if one.function.name:
                calls.append([one.function.name, ""])
            calls[one.index][1] += one.function.arguments or ""
    return [(name, json.loads(arguments)) for name, arguments in calls], content


OUTPUTS = {
    "a string that looks like a number": (call("run", cmd="1e5"), [("run", {"cmd": "1e5"})], ""),
    "a number for a number": (call("add", n="12"), [("add", {"n": 12})], ""),
    "nothing for a number or null": (call("add", n="null"), [("add", {"n": None})], ""),
    "a marker inside of a value": (
        call("run", cmd="echo '<tool_call>'"),
        [("run", {"cmd": "echo '<tool_call>'"})],
        "",
    ),
    "text and two calls": (
        "Hi" + call("run", cmd="ls") + call("add", n="-3"),
        [("run", {"cmd": "ls"}), ("add", {"n": -3})],
        "Hi",
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_values_are_read_by_the_schemas_of_the_tools_whole_and_in_pieces(name):
    text, calls, content = OUTPUTS[name]
    assert whole(text, request_of()) == (calls, content)
    for size in (1, 2, 7, len(text)):
        assert streamed(text, request_of(), size) == (calls, content), size


def test_a_call_of_a_tool_that_was_not_offered_is_not_dropped():
    calls, _ = whole(call("shutdown", now="true"), request_of())
    assert [name for name, _ in calls] == ["shutdown"]


def test_markers_reach_the_parser():
    request = request_of()
    assert parser().adjust_request(request).skip_special_tokens is False
