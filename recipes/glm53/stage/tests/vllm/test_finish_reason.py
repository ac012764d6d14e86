import asyncio
from types import SimpleNamespace

import pytest
from vllm.entrypoints.generate.base.protocol import FunctionCall
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import CompletionOutput, RequestOutput

TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


class Parser:
    """Finds these calls in any text."""

    tool_parser = None

    def __init__(self, calls):
        self.calls = calls

    def parse(self, *args, **kwargs):
        return None, None, [FunctionCall(name=name, arguments="{}") for name in self.calls]

    def set_prompt_token_ids(self, token_ids):
        pass

    def count_reasoning_tokens(self, token_ids):
        return 0


class Serving(OpenAIServingChat):
    """Without an engine, and with every option off."""

    parser_cls = SimpleNamespace(tool_parser_cls=object)
    enable_auto_tools = True
    response_role = "assistant"

    def __init__(self):
        pass

    def __getattr__(self, name):
        return None


def reason(engine, calls, **fields):
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], tools=[TOOL], **fields)
    output = CompletionOutput(0, "text", [1, 2], None, None, finish_reason=engine)

    async def results():
        yield RequestOutput("id", "hi", [1], None, [output], True)

    answer = Serving().chat_completion_full_generator(
        request, results(), "id", "m", [], None, SimpleNamespace(), parser=Parser(calls)
    )
    (choice,) = asyncio.run(answer).choices
    assert len(choice.message.tool_calls) == len(calls)
    return choice.finish_reason


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_limit_stays_visible_where_there_are_calls(choice):
    assert reason("length", ["run"], tool_choice=choice) == "length"
    assert reason("stop", ["run"], tool_choice=choice) == "tool_calls"
    assert reason("stop", ["run", "run"], tool_choice=choice) == "tool_calls"


def test_a_limit_stays_visible_where_there_are_none():
    assert reason("length", [], tool_choice="auto") == "length"
    assert reason("stop", [], tool_choice="auto") == "stop"
