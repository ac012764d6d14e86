"""`dynamo-structural-tags check`: what the grammar will enforce of each tool and parameter, before a request does."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .compiler import CompilerMissing, schema_compiler, synthetic_vocabulary, vocabulary_of
from .ladder import CompiledTool, Ladder, read_tools
from .schema import Verdict, worst

__all__ = ["add_command", "report"]

UNREADABLE = 2


def report(tools: list[CompiledTool]) -> dict[str, Any]:
    """The verdicts as data: one entry per tool, with one per parameter."""
    entries = []
    for made in tools:
        found, parameters = made.normalised, made.tool.parameters
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        entries.append(
            {
                "name": made.tool.name,
                "strict": made.tool.strict,
                "verdict": found.verdict.value,
                "level": made.level.value,
                "compile_ms": round(1000 * made.seconds, 2),
                "falls": [{"level": level.value, "reason": reason} for level, reason in made.falls],
                "parameters": {
                    name: worst([m.verdict for m in found.about("properties", name)]).value
                    for name in (properties if isinstance(properties, dict) else ())
                },
                "messages": [
                    {"path": m.path, "keyword": m.keyword, "verdict": m.verdict.value, "text": m.text}
                    for m in found.messages
                ],
            }
        )
    return {"verdict": worst([made.normalised.verdict for made in tools]).value, "tools": entries}


def _text(checked: dict[str, Any]) -> str:
    lines = []
    for tool in checked["tools"]:
        lines.append(f"{tool['name']}: {tool['verdict']}, level {tool['level']}, {tool['compile_ms']} ms")
        for name, verdict in tool["parameters"].items():
            lines.append(f"  {name}: {verdict}")
        lines += [f"  {m['path']} {m['keyword']}: {m['verdict']}: {m['text']}" for m in tool["messages"]]
        lines += [f"  level {fall['level']} does not compile: {fall['reason']}" for fall in tool["falls"]]
    count = len(checked["tools"])
    return "\n".join([*lines, f"{count} tool{'s' * (count != 1)}: {checked['verdict']}"])


def _check(arguments: argparse.Namespace) -> int:
    try:
        with open(arguments.file, encoding="utf-8") as file:
            tools = read_tools(json.load(file))
        vocabulary = vocabulary_of(arguments.vocab) if arguments.vocab else synthetic_vocabulary(arguments.vocab_size)
        ladder = Ladder(schema_compiler(vocabulary), seconds=60)
    except (OSError, ValueError, RecursionError, CompilerMissing) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return UNREADABLE
    checked = report(ladder.compile_tools(tools))
    print(json.dumps(checked, indent=2, ensure_ascii=False) if arguments.json else _text(checked))
    verdict, fell = checked["verdict"], any(tool["falls"] for tool in checked["tools"])
    if verdict == Verdict.IMPOSSIBLE or (arguments.strict and (verdict == Verdict.RELAXED or fell)):
        return 1
    return 0


def add_command(commands: Any) -> None:
    """Add ``check`` to the commands of an `argparse` parser."""
    check = commands.add_parser(
        "check",
        help="say what of the tools' schemas a grammar enforces",
        description="Exit status: 0 everything exact or relaxed, 1 a schema that no value satisfies, 2 unreadable.",
    )
    check.add_argument("file", help="OpenAI tools, an object with them under 'tools', an MCP tools/list, or one schema")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.add_argument("--strict", action="store_true", help="status 1 also for what is relaxed")
    check.add_argument("--vocab", metavar="TOKENIZER_JSON", help="compile with the vocabulary of this tokenizer.json")
    check.add_argument("--vocab-size", type=int, default=150_000, help="size of the made-up vocabulary without --vocab")
    check.set_defaults(run=_check)
