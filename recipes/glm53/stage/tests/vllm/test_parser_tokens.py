from types import SimpleNamespace

from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation
from vllm.parser.abstract_parser import DelegatingParser
from vllm.tool_parsers.abstract_tool_parser import ToolParser


class Tokenizer:
    def get_vocab(self):
        return {}


class Deaf(ToolParser):
    supports_required_and_named = False

    def __init__(self, tokenizer, tools=None):
        super().__init__(tokenizer, tools)
        self.heard = []

    def extract_tool_calls(self, model_output, request):
        self.heard.append(model_output)
        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)


class Listening(Deaf):
    def note_tokens(self, token_ids):
        self.heard.append(list(token_ids))


def parsed(tool_parser_cls):
    cls = type("Both", (DelegatingParser,), {"tool_parser_cls": tool_parser_cls})
    made = cls(Tokenizer())
    request = SimpleNamespace(tool_choice="auto", tools=[], include_reasoning=True, messages=[])
    answer = made.parse("text", request, enable_auto_tools=True, model_output_token_ids=(5, 6))
    return answer[1], made.tool_parser


def test_a_parser_is_told_the_tokens_before_the_text():
    content, parser = parsed(Listening)
    assert parser.heard == [[5, 6], "text"]
    assert content == "text"


def test_a_parser_need_not_listen():
    content, parser = parsed(Deaf)
    assert parser.heard == ["text"]
    assert content == "text"


def test_an_answer_without_a_tool_parser_is_parsed_as_before():
    assert parsed(None) == ("text", None)
