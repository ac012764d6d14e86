"""What the agents say: long first prompts, tools, and tool results that each turn appends.

A scaled-down copy of the production workload, where a turn appends about 6,000 tokens to a prompt of 140,000.
The tokenizer of the small model is one token a byte, so lengths in characters are lengths in tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["TOOLS", "first_messages", "tool_for", "tool_result"]

_FILES = ("src/cache.py", "src/router.py", "tests/test_cache.py", "README.md")


def _tool(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }


# Every value is from a finite set, so that a model with random weights ends its calls.
TOOLS: list[dict[str, Any]] = [
    _tool(
        "read_file",
        "Read a file of the repository.",
        {"path": {"type": "string", "enum": list(_FILES)}, "numbered": {"type": "boolean"}},
    ),
    _tool(
        "run_tests",
        "Run a test suite.",
        {"suite": {"type": "string", "enum": ["unit", "stock"]}, "verbose": {"type": "boolean"}},
    ),
    _tool("list_files", "List the repository.", {"hidden": {"type": "boolean"}}),
]


def tool_for(turn: int) -> str:
    """The tool that the agent is made to call in this turn, counted from 1."""
    return str(TOOLS[(turn - 1) % len(TOOLS)]["function"]["name"])


def first_messages(session: int, length: int) -> list[dict[str, Any]]:
    """System prompt and task of one agent, about `length` characters; sessions share the first half."""
    shared = _code(random.Random(0), length // 2)
    own = _code(random.Random(f"session {session}"), length - length // 2)
    return [
        {"role": "system", "content": f"You are a coding agent. The repository's conventions:\n{shared}"},
        {"role": "user", "content": f"Task {session}: make this code correct.\n{own}"},
    ]


def tool_result(session: int, turn: int, length: int) -> str:
    """What the tool answers: about `length` characters that differ by session and turn."""
    return _code(random.Random(f"session {session} turn {turn}"), length)


_NAMES = ("block", "cache", "chunk", "layer", "page", "prefix", "rank", "router", "scale", "token")
_VERBS = ("alloc", "evict", "load", "map", "pack", "pull", "push", "read", "split", "store")


def _lines(rng: random.Random) -> Iterator[str]:
    for number in range(1, 1_000_000):
        verb, name, other = rng.choice(_VERBS), rng.choice(_NAMES), rng.choice(_NAMES)
        yield f"{number:4d} def {verb}_{name}({other}): return {other}.{rng.choice(_VERBS)}({rng.randrange(1000)})"


def _code(rng: random.Random, length: int) -> str:
    text = ""
    for line in _lines(rng):
        if len(text) >= length:
            break
        text += line + "\n"
    return text[:length]
