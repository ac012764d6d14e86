"""Serving processes of this machine, as their command lines and environments show them: what the doctor looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

__all__ = ["Process", "find"]

Role = Literal["frontend", "worker", "serve"]

#: What a command line holds, and the role that it shows: a Dynamo frontend, a Dynamo worker, vLLM's own server.
_ROLES: tuple[tuple[Role, tuple[str, ...]], ...] = (
    ("frontend", ("dynamo.frontend", "dynamo_structural_tags.frontend")),
    ("worker", ("dynamo.vllm",)),
    ("serve", ("vllm.entrypoints.openai.api_server",)),
)

#: What runs vLLM's command line: its script, and its module as ``python -m`` starts it.
_VLLM = ("vllm", "vllm.entrypoints.cli.main")


@dataclass(frozen=True)
class Process:
    """One process: its id (None for a command that only was given), role, arguments and environment."""

    role: Role
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None

    @property
    def name(self) -> str:
        """How findings call it."""
        return f"{self.role} {self.pid}" if self.pid is not None else self.role

    def option(self, flag: str, variable: str = "") -> str | None:
        """The value of an option, given as ``--flag value``, ``--flag=value``, or in an environment variable."""
        for place, argument in enumerate(self.arguments):
            name, equals, value = argument.partition("=")
            if name.replace("_", "-") != flag:
                continue
            if equals:
                return value
            following = self.arguments[place + 1] if place + 1 < len(self.arguments) else ""
            return "true" if following.startswith("--") or not following else following
        return self.environment.get(variable) or None

    @property
    def module(self) -> str:
        """The module that runs, "vllm" for ``vllm serve``."""
        return next((a for a in self.arguments if any(a in names for _, names in _ROLES)), "vllm")


def _role(arguments: Sequence[str]) -> Role | None:
    for role, modules in _ROLES:
        if "-m" in arguments and any(module in arguments for module in modules):
            return role
    names = [Path(argument).name for argument in arguments[:8]]  # options of Python come first
    return "serve" if any((name, "serve") in pairwise(names) for name in _VLLM) else None


def find(proc: Path = Path("/proc")) -> list[Process]:
    """The serving processes that this user may look at, by id; forked and spawned children are left out."""
    return sorted(_all(proc), key=lambda process: process.pid or 0)


def _all(proc: Path) -> Iterator[Process]:
    for folder in proc.glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            arguments = _texts(folder / "cmdline")
            role = _role(arguments)
            if role is None:
                continue
            parent = _role(_texts(proc / _parent(folder) / "cmdline"))
            pairs = (text.partition("=") for text in _texts(folder / "environ"))
            environment = {name: value for name, equals, value in pairs if equals}
        except OSError:  # it ended, or is another user's
            continue
        if parent != role:
            yield Process(role, tuple(arguments), environment, int(folder.name))


def _texts(file: Path) -> list[str]:
    return [text.decode("utf-8", "replace") for text in file.read_bytes().split(b"\0") if text]


def _parent(folder: Path) -> str:
    # The name in parentheses may hold spaces; the parent is the second field behind it.
    return (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
