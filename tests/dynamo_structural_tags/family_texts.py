"""Calls as the chat template of each family writes them, and what reads them: vLLM's own parser of the family."""

from __future__ import annotations

import json
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

#: What stands around all calls of a turn, and between two.
FRAMES: dict[str, tuple[str, str, str]] = {
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "hermes": ("", "\n", ""),
    "kimi_k2": ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "minimax_m2": ("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    "qwen3_coder": ("", "\n", ""),
}
#: All texts with a meaning: pieces of the vocabulary that texts are sampled from.
MARKS: dict[str, tuple[str, ...]] = {
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁calls▁begin｜>",
        "<｜tool▁sep｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "\n```json\n",
        "\n```<｜tool▁call▁end｜>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    "hermes": ("<tool_call>", "</tool_call>", '<tool_call>\n{"name": "', '", "arguments": {', "}\n</tool_call>"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.",
        "<|tool_call_argument_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>", ":0<|tool_call_argument_begin|>",
    ),
    "minimax_m2": (
        "<minimax:tool_call>\n", "</minimax:tool_call>", '<invoke name="', "</invoke>\n", "</invoke>",
        '<parameter name="', "</parameter>\n", "</parameter>", '">', "<minimax:tool_call>",
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=", "</function>\n</tool_call>", "<parameter=", "\n</parameter>\n", "</parameter>",
        ">\n", "<tool_call>", "</tool_call>", "<function=", "</function>",
    ),
}  # fmt: skip


def call_text(family: str, name: str, arguments: dict[str, Any]) -> str:
    """One call inside of its frame."""
    body = json.dumps(arguments, ensure_ascii=False)
    values = {key: value if isinstance(value, str) else _json(value) for key, value in arguments.items()}
    match family:
        case "deepseek_v3":
            return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{body}\n```<｜tool▁call▁end｜>"
        case "deepseek_v31":
            return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{body}<｜tool▁call▁end｜>"
        case "hermes":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {body}}}\n</tool_call>'
        case "kimi_k2":
            return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{body}<|tool_call_end|>"
        case "minimax_m2":
            pairs = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
            return f'<invoke name="{name}">\n{pairs}</invoke>\n'
        case _:
            pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
            return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def turn_text(family: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Some calls of one turn."""
    begin, between, end = FRAMES[family]
    return begin + between.join(call_text(family, name, arguments) for name, arguments in calls) + end


class MarkersTokenizer:
    """A fake tokenizer: it knows the ids of the markers and nothing else. vLLM's parsers ask for no more here."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        marks = {mark: None for marks in MARKS.values() for mark in (*marks, "<think>", "</think>")}
        self._ids = {mark: place for place, mark in enumerate(marks)}

    def get_vocab(self) -> dict[str, int]:
        return self._ids


_TOKENIZER = MarkersTokenizer()


def read(family: str, text: str, tools: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """The content and the calls that vLLM's parser of this name makes of an answer."""
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
    parser = ToolParserManager.get_tool_parser(family)(_TOKENIZER, request.tools)
    found = parser.extract_tool_calls(text, request)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
    return found.content or "", calls
