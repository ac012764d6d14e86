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
    "deepseek_v32": ("<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
    "deepseek_v4": ("<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"),
    "deepseek_v41": ("<｜DSML｜ calls>\n", "", "</｜DSML｜ calls>"),
    "gemma4": ("", "", ""),
    "hermes": ("", "\n", ""),
    "jamba": ("<tool_calls>[\n    ", ",\n    ", "\n]</tool_calls>"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "llama3_json": ("", "; ", ""),
    "minimax_m2": ("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    "mistral": ("[TOOL_CALLS] [", ", ", "]"),
    "mistral_v11": ("", "", ""),
    "pythonic": ("[", ", ", "]"),
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
    "deepseek_v32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="', "</｜DSML｜function_calls>", "</｜DSML｜invoke>\n",
        '<｜DSML｜parameter name="', '" string="true">', '" string="false">', "</｜DSML｜parameter>\n",
        "<｜DSML｜function_calls>", "</｜DSML｜",
    ),
    "deepseek_v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="', "</｜DSML｜tool_calls>", "</｜DSML｜invoke>\n",
        '<｜DSML｜parameter name="', '" string="true">', '" string="false">', "</｜DSML｜parameter>\n",
        "<｜DSML｜tool_calls>",
    ),
    "deepseek_v41": (
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="', "</｜DSML｜ calls>", "</｜DSML｜ invoke>\n",
        '<｜DSML｜ parameter name="', '" string="true">', '" string="false">', "</｜DSML｜ parameter>\n",
        "<｜DSML｜ calls>",
    ),
    "gemma4": (
        "<|tool_call>", "<|tool_call>call:", "<tool_call|>", "}<tool_call|>", '<|"|>', '<|"|>,', ':<|"|>', "<|channel>",
        "<channel|>",
    ),
    "hermes": ("<tool_call>", "</tool_call>", '<tool_call>\n{"name": "', '", "arguments": {', "}\n</tool_call>"),
    "jamba": (
        "<tool_calls>", "</tool_calls>", '<tool_calls>[\n    {"name": "', '", "arguments": {', "}\n]</tool_calls>",
        '},\n    {"name": "',
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.",
        "<|tool_call_argument_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>", ":0<|tool_call_argument_begin|>",
    ),
    "llama3_json": ("<|python_tag|>", '{"name": "', '", "parameters": {'),
    "minimax_m2": (
        "<minimax:tool_call>\n", "</minimax:tool_call>", '<invoke name="', "</invoke>\n", "</invoke>",
        '<parameter name="', "</parameter>\n", "</parameter>", '">', "<minimax:tool_call>",
    ),
    "minimax_m3": (
        "]<]minimax[>[", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="', "]<]minimax[>[</invoke>\n",
        "]<]minimax[>[</tool_call>", "]<]minimax[>[</", "]<]minimax[>[<item>", "]<]minimax[>[</item>", "&lt;", "&",
    ),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "', '", "arguments": {', '}, {"name": "'),
    "mistral_v11": ("[TOOL_CALLS]", "[ARGS]", "[ARGS]{"),
    "nemotron_deci": ("<TOOLCALL>", "</TOOLCALL>", '<TOOLCALL>[{"name": "', '", "arguments": {', "}]</TOOLCALL>"),
    "pythonic": ("[r(", "[run(", "(", ")]", "=", "=True", "None", ", ", '="'),
    "phi4": ("functools[", 'functools[{"name": "', '", "arguments": {'),
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
        case "deepseek_v32" | "deepseek_v4" | "deepseek_v41":
            return _dsml(name, arguments, " " if family == "deepseek_v41" else "")
        case "gemma4":
            return f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>"
        case "jamba" | "mistral":
            return f'{{"name": "{name}", "arguments": {body}}}'
        case "llama3_json":
            return f'{{"name": "{name}", "parameters": {body}}}'
        case "pythonic":
            pairs = ", ".join(f"{key}={_python(value)}" for key, value in arguments.items())
            return f"{name}({pairs})"
        case "mistral_v11":
            return f"[TOOL_CALLS]{name}[ARGS]{body}"
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


def _dsml(name: str, arguments: dict[str, Any], gap: str) -> str:
    pairs = "".join(
        f'<｜DSML｜{gap}parameter name="{key}" string="true">{value}</｜DSML｜{gap}parameter>\n'
        if isinstance(value, str)
        else f'<｜DSML｜{gap}parameter name="{key}" string="false">{_json(value)}</｜DSML｜{gap}parameter>\n'
        for key, value in arguments.items()
    )
    return f'<｜DSML｜{gap}invoke name="{name}">\n{pairs}</｜DSML｜{gap}invoke>\n'


def _gemma(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_gemma, value)) + "]"
    return _json(value)


def _python(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_json(key)}: {_python(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_python, value)) + "]"
        case None | bool():
            return str(value)
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def turn_text(family: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Some calls of one turn."""
    begin, between, end = FRAMES[family]
    return begin + between.join(call_text(family, name, arguments) for name, arguments in calls) + end


#: vLLM's name of the parser, where it is not the family's.
_PARSERS = {"mistral_v11": "mistral"}


class MarkersTokenizer:
    """A fake tokenizer: it knows the ids of a family's markers and nothing else, which is all that the parsers need."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, family: str) -> None:
        self._ids = {mark: place for place, mark in enumerate((*MARKS[family], "<think>", "</think>"))}

    def get_vocab(self) -> dict[str, int]:
        return self._ids


_TOKENIZERS = {family: MarkersTokenizer(family) for family in MARKS}


def read(family: str, text: str, tools: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """The content and the calls that vLLM's parser of the family makes of an answer."""
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
    parser = ToolParserManager.get_tool_parser(_PARSERS.get(family, family))(_TOKENIZERS[family], request.tools)
    found = parser.extract_tool_calls(text, request)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
    return found.content or "", calls
