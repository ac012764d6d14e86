"""Time to compile tools' schemas: raw as stock passes them on, against normalised, cold and cached.

100 tools x 12 parameters as MCP servers describe them, on a synthetic vocabulary of 150,000 tokens. All tools of a
request are one structural tag, as the engine compiles it. Three steps are timed in the same run:

normalise    JSON Schema to the forms that xgrammar enforces
convert      schema to grammar, without a vocabulary: where a schema fails, if it does
compile      grammar to masks over the vocabulary; xgrammar's own cache is off

Processor time of this process, all threads, so that a busy machine does not count. Ratio: normalised / raw.

    python benchmarks/tool_schemas.py [--tools 100] [--vocab 150000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from dynamo_structural_tags.compiler import schema_converter, synthetic_vocabulary
from dynamo_structural_tags.ladder import Ladder, Tool
from dynamo_structural_tags.schema import normalise


def parameters(tool: int) -> dict[str, Any]:
    """Arguments of a tool: names differ from tool to tool, kinds are those of common MCP servers."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "description": "a path"},
        {"type": "string"},
        {"type": "string", "enum": ["asc", "desc", f"by_{tool}"]},
        {"type": "integer", "minimum": 1, "maximum": 100},
        {"type": "boolean", "default": False},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "object", "properties": {f"key_{tool}": {"type": "string"}}, "additionalProperties": False},
        {"type": "array", "items": {"$ref": "#/$defs/edit"}},
        {"type": "string", "pattern": "^https?://"},
        {"type": "string", "maxLength": 200},
        {"type": "number"},
    ]
    edit = {
        "type": "object",
        "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
        "required": ["old", "new"],
        "additionalProperties": False,
    }
    properties = {f"parameter_{tool}_{place}": kind for place, kind in enumerate(kinds)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:4],
        "additionalProperties": False,
        "$defs": {"edit": edit},
    }


def tag(schemas: list[dict[str, Any]]) -> str:
    """One structural tag with a call of each tool."""
    tags = [
        {
            "begin": f"<tool_call>tool_{place}\n",
            "content": {"type": "json_schema", "json_schema": schema, "style": "json", "max_whitespace_cnt": 1},
            "end": "</tool_call>",
        }
        for place, schema in enumerate(schemas)
    ]
    return json.dumps(
        {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}}
    )


def milliseconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Least processor time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def _convert_ms(schemas: list[dict[str, Any]]) -> float:
    import xgrammar

    return milliseconds(lambda: xgrammar.Grammar.from_structural_tag(tag(schemas)))


def _compile_ms(compiler: Any, schemas: list[dict[str, Any]]) -> float:
    return milliseconds(lambda: compiler.compile_structural_tag(tag(schemas)), repeats=1)


def main() -> None:
    """Print the table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--vocab", type=int, default=150_000)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    import xgrammar

    vocabulary = synthetic_vocabulary(arguments.vocab)
    tokens = xgrammar.TokenizerInfo(
        [*vocabulary, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(vocabulary)]
    )
    compiler = xgrammar.GrammarCompiler(tokens, cache_enabled=False)
    raw = [parameters(tool) for tool in range(arguments.tools)]
    normalised = [normalise(schema, arguments=True).schema for schema in raw]
    tools = [Tool(f"tool_{place}", schema) for place, schema in enumerate(raw)]
    warm = Ladder(schema_converter())
    warm.compile_tools(tools)

    rows = {
        "normalise": (0.0, milliseconds(lambda: [normalise(schema, arguments=True) for schema in raw])),
        "convert": (_convert_ms(raw), _convert_ms(normalised)),
        "compile": (_compile_ms(compiler, raw), _compile_ms(compiler, normalised)),
        "ladder, cold": (0.0, milliseconds(lambda: Ladder(schema_converter()).compile_tools(tools))),
        "ladder, cached": (0.0, milliseconds(lambda: warm.compile_tools(tools))),
    }
    print(f"{arguments.tools} tools x 12 parameters, {arguments.vocab} tokens, xgrammar {version('xgrammar')}")
    print(f"{'ms of processor time':22}{'raw':>10}{'normalised':>12}{'ratio':>8}")
    for name, (before, after) in rows.items():
        ratio = f"{after / before:8.2f}" if before else "       -"
        print(f"{name:22}{before or float('nan'):10.1f}{after:12.1f}{ratio}".replace("nan", "  -"))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(
                {name: {"raw_ms": raw_ms, "normalised_ms": ms} for name, (raw_ms, ms) in rows.items()}, file, indent=2
            )


if __name__ == "__main__":
    main()
