"""Changes of a rendered process, one at a time: what the tests of mutations make, and checks must catch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

__all__ = ["FREE", "Change", "changes", "leaves", "other"]

#: Variables that change nothing which another process relies on.
FREE = {
    "CUDA_VISIBLE_DEVICES",
    "DO_NOT_TRACK",
    "DYN_SYSTEM_PORT",
    "HF_HUB_OFFLINE",
    "PYTHONUNBUFFERED",
    "TRANSFORMERS_OFFLINE",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_NO_USAGE_STATS",
    "VLLM_PORT",
}
#: Other addresses of the own node; loopback is what goes wrong.
ADDRESSES = {"DYN_TCP_RESPONSE_STREAM_HOST", "DYN_TCP_RPC_HOST", "VLLM_NIXL_SIDE_CHANNEL_HOST"}

Change = Callable[[list[str], dict[str, str]], None]


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 64 if isinstance(value, int) else f"{value}9"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in nested data that are neither mapping nor list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)):
        yield path
    for key, item in items:
        yield from leaves(item, (*path, key))


def changes(argv: list[str], env: dict[str, str]) -> Iterator[tuple[str, Change]]:
    """Name and change, for every argument, every leaf of JSON in one, and every variable; each without and other."""
    for at, word in enumerate(argv):
        value = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("-") else None
        if not word.startswith("--"):
            continue
        yield f"{word} removed", partial(_cut, at, 2 if value else 1)
        if value and value.startswith("{"):
            for path in leaves(json.loads(value)):
                yield f"{word} {'.'.join(map(str, path))}", partial(_set_leaf, at + 1, path)
        elif value:
            changed = other(int(value)) if value.isdigit() else other(value)
            yield f"{word} other", partial(_set_word, at + 1, str(changed))
    for name, value in env.items():
        yield f"{name} removed", partial(_set_variable, name, None)
        yield f"{name} other", partial(_set_variable, name, "127.0.0.1" if name in ADDRESSES else other(value))


def _cut(at: int, words: int, argv: list[str], env: dict[str, str]) -> None:
    del argv[at : at + words]


def _set_word(at: int, word: str, argv: list[str], env: dict[str, str]) -> None:
    argv[at] = word


def _set_variable(name: str, value: str | None, argv: list[str], env: dict[str, str]) -> None:
    del env[name]
    if value is not None:
        env[name] = value


def _set_leaf(at: int, path: tuple[Any, ...], argv: list[str], env: dict[str, str]) -> None:
    whole = json.loads(argv[at])
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other(inner[path[-1]])
    argv[at] = json.dumps(whole)
