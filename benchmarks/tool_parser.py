"""Tokens per second of the incremental parser on one core, and of vLLM's own GLM parser on the same outputs.

A token is one marker or four characters of other text. vLLM's parser gets the same content, token by token with the
ids of a byte-level tokenizer, as its server hands it over. (Dynamo's parsers are compiled into its frontend and cannot
be called.) Each output comes in three sizes, the largest for this parser only: time that grows no faster than the
output shows as equal figures.

Usage: ``python benchmarks/tool_parser.py [--json]``; without vLLM only this parser is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dynamo_structural_tags.glm_format import MARKS
from dynamo_structural_tags.parser import ArgumentsDelta, GlmStream

LINES = 'def f(a, b):\n    """Whether a < b, and é."""\n    return a < b\n'
SIZES = (1, 4, 64)
STOCK_SIZES = (1, 4)
GOAL = 50_000
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "edits": {"type": "array"}},
            },
        },
    }
]


def _call(**arguments: Any) -> str:
    """A call as the template writes it."""
    pairs = (
        f"<arg_key>{key}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for key, value in arguments.items()
    )
    return f"<tool_call>write_file{''.join(pairs)}</tool_call>"


def _outputs(size: int) -> dict[str, str]:
    """Contents behind ``</think>``; at size 64 the file has about 400 KB."""
    return {
        "one large file": _call(path="a.py", content=LINES * 100 * size),
        "many small calls": _call(path="a.py", content=LINES) * 50 * size,
        "an array of edits": _call(path="a.py", edits=[{"old": LINES, "new": LINES}] * 30 * size),
        "text": "Because a < b, " * 400 * size,
    }


def _tokens(text: str) -> list[str]:
    parts = re.split("(" + "|".join(map(re.escape, MARKS)) + ")", text)
    return [
        token
        for part in parts
        for token in ([part] if part in MARKS else (part[start : start + 4] for start in range(0, len(part), 4)))
    ]


def _ours(tokens: list[str]) -> tuple[float, str]:
    """Seconds of CPU, and the text of all arguments."""
    stream = GlmStream(TOOLS, thinking=False)
    arguments = []
    began = time.process_time()
    for token in tokens:
        for event in stream.feed(token):
            if isinstance(event, ArgumentsDelta):
                arguments.append(event.json)
    for event in stream.finish("stop"):
        if isinstance(event, ArgumentsDelta):
            arguments.append(event.json)
    return time.process_time() - began, "".join(arguments)


def _vllm() -> Callable[[list[str]], tuple[float, str]] | None:
    """The same with vLLM's parser; None if vLLM is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoTokenizer
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager
    except ImportError:
        return None
    from glm53.model import make

    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "model")
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "model")
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=TOOLS)

    def run(tokens: list[str]) -> tuple[float, str]:
        parser = ToolParserManager.get_tool_parser("glm47")(tokenizer, request.tools)
        ids = [tokenizer.encode(token, add_special_tokens=False) for token in tokens]
        arguments: list[str] = []
        began = time.process_time()
        for token, numbers in zip(tokens, ids, strict=True):
            delta = parser.extract_tool_calls_streaming("", "", token, [], [], numbers, request)
            for call in (delta and delta.tool_calls) or ():
                arguments.append((call.function and call.function.arguments) or "")
        delta = parser.finish_streaming()
        for call in (delta and delta.tool_calls) or ():
            arguments.append((call.function and call.function.arguments) or "")
        return time.process_time() - began, "".join(arguments)

    return run


def _rows(stock: Callable[[list[str]], tuple[float, str]] | None) -> Iterator[dict[str, Any]]:
    for size in SIZES:
        for name, text in _outputs(size).items():
            tokens = _tokens(text)
            seconds, arguments = min(_ours(tokens) for _ in range(3))
            row: dict[str, Any] = {"output": name, "tokens": len(tokens), "tokens_per_s": round(len(tokens) / seconds)}
            if stock is not None and size in STOCK_SIZES:
                stock_seconds, stock_arguments = stock(tokens)
                row["vllm_tokens_per_s"] = round(len(tokens) / stock_seconds)
                row["ratio"] = round(stock_seconds / seconds, 1)
                row["same_arguments"] = _values(arguments) == _values(stock_arguments)
            yield row


def _values(text: str) -> list[Any]:
    """The JSON values that follow each other in the text; its raw text where that is no JSON."""
    values: list[Any] = []
    position, decoder = 0, json.JSONDecoder()
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError:
            return [*values, text[position:]]
        values.append(value)
    return values


def main() -> None:
    """Print one row per output and size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = _rows(_vllm())
    if as_json:
        print(json.dumps(list(rows)))
        return
    print(f"goal: {GOAL} tokens/s, at any size")
    for row in rows:
        line = f"{row['output']:18} {row['tokens']:7} tokens {row['tokens_per_s']:9} tokens/s"
        if "ratio" in row:
            same = "same" if row["same_arguments"] else "other"
            line += f"   vLLM {row['vllm_tokens_per_s']:7} tokens/s  = {row['ratio']:.1f} x, {same} arguments"
        print(line, flush=True)


if __name__ == "__main__":
    main()
