"""`dynamo-structural-tags check`: what the grammar will enforce of each tool and parameter, before a request does."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from .compiler import CompilerMissing, schema_compiler, synthetic_vocabulary, vocabulary_of
from .families import family_named
from .grammar import BuiltTool, build
from .ladder import CompiledTool, Ladder, Level, read_tools
from .schema import Message, Verdict, worst

__all__ = ["add_command", "report"]

UNREADABLE = 2

_BYTES = 256
_FILES = "a UTF-8 file of JSON with OpenAI's tools, an object with them under 'tools', an MCP tools/list, or one schema"


def report(tools: list[CompiledTool], family: str = "glm") -> dict[str, Any]:
    """The verdicts as data: one entry per tool, with one per parameter.

    They are those of the tag of `grammar`, which relaxes more than the schemas alone. A tool that no tag can hold is
    impossible; of two tools with one name the first counts, for the tag and the parser.
    """
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for made in tools:
        found, parameters = made.normalised, made.tool.parameters
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        served = _served(made, family)
        messages = [*found.messages, *_of_the_tag(made, served, family, twice=made.tool.name in seen)]
        told = replace(found, messages=tuple(messages))
        seen.add(made.tool.name)
        level = max(made.level, served.level if served else Level.NAMES, key=list(Level).index)
        falls = (*made.falls, *(fall for fall in (served.falls if served else ()) if fall not in made.falls))
        entries.append(
            {
                "name": made.tool.name,
                "strict": made.tool.strict,
                "verdict": worst([found.verdict, *(message.verdict for message in messages)]).value,
                "level": level.value,
                "compile_ms": round(1000 * made.seconds, 2),
                "falls": [{"level": fallen.value, "reason": reason} for fallen, reason in falls],
                "parameters": {
                    name: worst([m.verdict for m in told.about("properties", name)]).value
                    for name in (properties if isinstance(properties, dict) else ())
                },
                "messages": [
                    {"path": m.path, "keyword": m.keyword, "verdict": m.verdict.value, "text": m.text} for m in messages
                ],
            }
        )
    return {"verdict": worst([Verdict(entry["verdict"]) for entry in entries]).value, "tools": entries}


def _served(made: CompiledTool, family: str) -> BuiltTool | None:
    """What a request's tag enforces of the tool; None if no tag can hold it."""
    tool = made.tool
    function = {"name": tool.name, "parameters": tool.parameters, "strict": tool.strict}
    return next(iter(build([{"type": "function", "function": function}], family=family).tools), None)


def _of_the_tag(made: CompiledTool, served: BuiltTool | None, family: str, *, twice: bool) -> list[Message]:
    """What there is to say about the tool beyond its schema."""
    said = set(made.normalised.messages)
    messages = [message for message in (served.messages if served else ()) if message not in said]
    if served is None:
        text = f"cannot be written in a call of family {family}: no tag has the tool; choose another name"
        messages.append(Message("#", "name", Verdict.IMPOSSIBLE, text))
    if twice:
        messages.append(Message("#", "name", Verdict.RELAXED, "declared twice: the first tool of this name counts"))
    return messages


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
        with open(arguments.file, encoding="utf-8-sig") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        _refuse(f"{arguments.file}: {error}: this cannot be read; needed is {_FILES}")
        return UNREADABLE
    try:
        tools = read_tools(document)
        family_named(arguments.family)
        if arguments.vocab_size < _BYTES:
            raise ValueError(f"--vocab-size={arguments.vocab_size}: every byte is a token; at least {_BYTES}")
        vocabulary = vocabulary_of(arguments.vocab) if arguments.vocab else synthetic_vocabulary(arguments.vocab_size)
        ladder = Ladder(schema_compiler(vocabulary), seconds=60)
    except (ValueError, CompilerMissing) as error:
        _refuse(f"{arguments.file}: {error}")
        return UNREADABLE
    checked = report(ladder.compile_tools(tools), arguments.family)
    print(_printable(json.dumps(checked, indent=2, ensure_ascii=False) if arguments.json else _text(checked)))
    verdict, fell = checked["verdict"], any(tool["falls"] for tool in checked["tools"])
    if verdict == Verdict.IMPOSSIBLE or (arguments.strict and (verdict == Verdict.RELAXED or fell)):
        return 1
    return 0


def _refuse(text: str) -> None:
    print(_printable(text), file=sys.stderr)


def _printable(text: str) -> str:
    """The text with lone surrogates escaped, as JSON writes them."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    check.add_argument("--family", default="glm", help="the model's format of calls, glm by default")
    check.add_argument("--vocab", metavar="TOKENIZER_JSON", help="compile with the vocabulary of this tokenizer.json")
    check.add_argument(
        "--vocab-size", type=int, default=150_000, help="size of the made-up vocabulary without --vocab, 256 or more"
    )
    check.set_defaults(run=_check)
