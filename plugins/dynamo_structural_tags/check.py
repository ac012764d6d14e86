"""`dynamo-structural-tags check`: what the grammar will enforce of each tool and parameter, before a request does."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .compiler import CompilerMissing, synthetic_vocabulary, tag_compiler, vocabulary_of
from .families import family_named
from .grammar import BuiltTool, build
from .ladder import Level, Tool, read_tools
from .schema import Message, Normalised, Verdict, normalise, worst

__all__ = ["Vocabulary", "add_command", "report"]

UNREADABLE = 2

_BYTES = 256
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f]")
#: For the tags of one request; tools that are left then fall to their names, as in a server.
_MOST_SECONDS = 60
_FILES = "a UTF-8 file of JSON with OpenAI's tools, an object with them under 'tools', an MCP tools/list, or one schema"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What tags are compiled for. source: where its tokens come from."""

    tokens: list[bytes]
    source: str


def report(tools: list[Tool], vocabulary: Vocabulary, family: str = "glm") -> dict[str, Any]:
    """The verdicts as data: one entry per tool, with one per parameter.

    They are those of a request's tag, which relaxes more than the schema alone. A tool that no tag can hold is
    impossible; of two tools with one name the first counts, for the tag and the parser. Times are those of the first
    request, with the tool alone or with all of them: from the tools to a tag that is compiled for the vocabulary.

    Raises `CompilerMissing` without xgrammar.
    """
    compiled = tag_compiler(vocabulary.tokens)
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for tool in tools:
        served, seconds = _served([tool], family, compiled)
        entries.append(_entry(tool, served[0] if served else None, seconds, family, twice=tool.name in seen))
        seen.add(tool.name)
    return {
        "verdict": worst([Verdict(entry["verdict"]) for entry in entries]).value,
        "family": family,
        "vocabulary": {"tokens": len(vocabulary.tokens), "source": vocabulary.source},
        "compile_ms": round(1000 * _served(tools, family, compiled)[1], 2),
        "tools": entries,
    }


def _served(tools: list[Tool], family: str, compiled: Callable[[dict[str, Any]], Any]) -> tuple[list[BuiltTool], float]:
    """What a request's tag enforces of the tools it can hold, and the seconds until it is compiled."""
    start = time.perf_counter()

    def check(tag: dict[str, Any]) -> None:
        if time.perf_counter() - start > _MOST_SECONDS:
            raise TimeoutError(f"more than {_MOST_SECONDS} s")
        compiled(tag)

    functions = [{"name": tool.name, "parameters": tool.parameters, "strict": tool.strict} for tool in tools]
    built = build([{"type": "function", "function": function} for function in functions], family=family, check=check)
    return list(built.tools), time.perf_counter() - start


def _entry(tool: Tool, served: BuiltTool | None, seconds: float, family: str, *, twice: bool) -> dict[str, Any]:
    parameters = {} if tool.parameters is None else tool.parameters  # a tool without any, as in a request
    found, properties = normalise(parameters, strict=tool.strict, arguments=True), None
    if isinstance(tool.parameters, dict):
        properties = tool.parameters.get("properties")
    messages = [*found.messages, *_of_the_tag(found, served, family, twice=twice)]
    told = replace(found, messages=tuple(messages))
    return {
        "name": tool.name,
        "strict": tool.strict,
        "verdict": worst([found.verdict, *(message.verdict for message in messages)]).value,
        "level": (served.level if served else Level.NAMES).value,
        "compile_ms": round(1000 * seconds, 2),
        "falls": [{"level": level.value, "reason": reason} for level, reason in (served.falls if served else ())],
        "parameters": {
            name: worst([m.verdict for m in told.about("properties", name)]).value
            for name in (properties if isinstance(properties, dict) else ())
        },
        "messages": [
            {"path": m.path, "keyword": m.keyword, "verdict": m.verdict.value, "text": m.text} for m in messages
        ],
    }


def _of_the_tag(found: Normalised, served: BuiltTool | None, family: str, *, twice: bool) -> list[Message]:
    """What there is to say about the tool beyond its schema."""
    said = set(found.messages)
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
    count, vocabulary = len(checked["tools"]), checked["vocabulary"]
    lines.append(f"{count} tool{'s' * (count != 1)}: {checked['verdict']}, {checked['compile_ms']} ms in one request")
    lines.append(
        f"times: tools to a compiled tag, {vocabulary['tokens']} tokens of {vocabulary['source']}, first request"
    )
    return "\n".join(map(_line, lines))


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
        if arguments.vocab:
            vocabulary = Vocabulary(vocabulary_of(arguments.vocab), arguments.vocab)
        else:
            vocabulary = Vocabulary(synthetic_vocabulary(arguments.vocab_size), "a made-up vocabulary")
        checked = report(tools, vocabulary, arguments.family)
    except (ValueError, CompilerMissing) as error:
        _refuse(f"{arguments.file}: {error}")
        return UNREADABLE
    print(_printable(json.dumps(checked, indent=2, ensure_ascii=False) if arguments.json else _text(checked)))
    verdict, fell = checked["verdict"], any(tool["falls"] for tool in checked["tools"])
    if verdict == Verdict.IMPOSSIBLE or (arguments.strict and (verdict == Verdict.RELAXED or fell)):
        return 1
    return 0


def _refuse(text: str) -> None:
    print(_printable(_line(text)), file=sys.stderr)


def _line(text: str) -> str:
    """The text with characters escaped that would end the line or command the terminal."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


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
