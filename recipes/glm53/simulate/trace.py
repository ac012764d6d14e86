"""Traces of agents at work: lengths and block hashes of every turn, and nothing of what was said.

The format is Mooncake's JSONL, as Dynamo's replay reads it: one request a line, with ``input_length`` and
``output_length`` in tokens, and ``hash_ids``, one number for each block of `Agents.block` tokens of the prompt. Two
prompts share as many tokens as their lists share numbers at the beginning. The first request of a ``session_id``
arrives at ``timestamp``, each further one ``delay`` after the answer before it; both in milliseconds.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["Agents", "Request", "TraceError", "check", "read", "repeats", "write"]


class TraceError(ValueError):
    """A trace that cannot be made or read: the text names the value, why, what is allowed and what to do."""


@dataclass(frozen=True)
class Request:
    """One turn. input, output: tokens. hashes: one a block of the prompt, its last block filled or not.

    timestamp, delay: milliseconds; one of them, see the module.
    """

    session: str
    input: int
    output: int
    hashes: tuple[int, ...]
    timestamp: float | None = None
    delay: float | None = None

    def row(self) -> dict[str, Any]:
        """The request as a line's object."""
        when = {"timestamp": self.timestamp} if self.timestamp is not None else {"delay": self.delay}
        lengths = {"input_length": self.input, "output_length": self.output}
        return {"session_id": self.session, **when, **lengths, "hash_ids": list(self.hashes)}


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Agents that work through tasks, one after the other.

    sessions: agents at the same time. prompt: tokens of a task's first prompt, which nothing has seen before: a cold
    arrival. append: tokens that each further turn adds to the prompt: the answer before it, and what a tool returned.
    turns: of one task; then the agent gets the next one. Its first task is already under way, by a random number of
    turns, so that cold arrivals are spread. rounds: turns of each agent in the whole trace.
    output: tokens of an answer. tool_seconds: mean time between an answer and the next turn, exponentially distributed.
    shared: tokens that all prompts begin with. spread_seconds: over which first arrivals are spread evenly.
    block: tokens a hash stands for. seed: fixes everything that is random.
    """

    sessions: int = 66
    prompt: int = 140_000
    append: int = 6_000
    turns: int = 16
    rounds: int = 16
    output: int = 1_000
    tool_seconds: float = 20.0
    shared: int = 0
    spread_seconds: float = 150.0
    block: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            least = 0 if field.name in ("append", "shared", "seed", "tool_seconds", "spread_seconds") else 1
            if (whole and type(value) is not int) or not least <= value <= 10_000_000:
                kind = "a whole number" if whole else "a number"
                raise TraceError(f"{field.name}={value!r}: it must be {kind} from {least} to 10,000,000. Correct it.")
        if self.shared > self.prompt:
            raise TraceError(f"shared={self.shared} of prompt={self.prompt} tokens: it is a part of it. Give less.")
        if self.rounds > 1 and self.output > self.append:
            raise TraceError(
                f"output={self.output} append={self.append}: an answer is part of what the next turn adds. Give a "
                "larger append or a smaller output."
            )
        if self.tokens > 4_000_000_000:
            raise TraceError(
                f"sessions={self.sessions} x rounds={self.rounds} turns have {self.tokens:,} prompt tokens, above "
                "4,000,000,000, which takes too long to replay. Give fewer rounds."
            )

    @property
    def measured(self) -> range:
        """The turns of each agent that are measured: the middle half, without filling caches and without the end."""
        return range(self.rounds // 4, -(-3 * self.rounds // 4))

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, at most."""
        return self.sessions * self.rounds * (self.prompt + (self.turns - 1) * self.append)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return self.prompt + (self.turns - 1) * self.append + self.output

    def requests(self) -> Iterator[Request]:
        """All turns, agent by agent."""
        numbers = itertools.count()
        common = [next(numbers) for _ in range(self.shared // self.block)]
        for agent in range(self.sessions):
            # An own source each, so that more agents or rounds leave the others' first turns as they are.
            chance = random.Random(self.seed * 1_000_003 + agent)
            turn = chance.randrange(self.turns)
            hashes = list(common)
            for played in range(self.rounds):
                if turn == self.turns:
                    turn, hashes = 0, list(common)
                tokens = self.prompt + turn * self.append
                while len(hashes) < -(-tokens // self.block):
                    hashes.append(next(numbers))
                begins = self.spread_seconds * 1000 * agent / self.sessions
                waits = chance.expovariate(1 / self.tool_seconds) * 1000 if self.tool_seconds else 0.0
                yield Request(
                    session=f"agent-{agent:04}",
                    input=tokens,
                    output=self.output,
                    hashes=tuple(hashes),
                    timestamp=round(begins, 3) if played == 0 else None,
                    delay=None if played == 0 else round(waits, 3),
                )
                turn += 1


def write(requests: Iterable[Request], path: Path) -> int:
    """Write a trace; returns its number of requests."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for request in requests:
            file.write(json.dumps(request.row(), separators=(",", ":")) + "\n")
            count += 1
    return count


def repeats(requests: Iterable[Request], block: int, turns: range | None = None) -> tuple[int, int]:
    """(tokens of prompts, those of them that an earlier line's prompt began with): what the best cache would find.

    Lines are taken in the order in which they come. turns: of each session, that are counted; None counts all.
    """
    filled: dict[int, int] = {}  # hash -> tokens of its block that some prompt had
    played: Counter[str] = Counter()
    total = again = 0
    for request in requests:
        counted = turns is None or played[request.session] in turns
        played[request.session] += 1
        total += request.input if counted else 0
        common = counted
        for number, one in enumerate(request.hashes):
            tokens, before = min(block, request.input - number * block), filled.get(one, 0)
            again += min(tokens, before) if common else 0
            common = common and before >= tokens
            filled[one] = max(tokens, before)
    return total, again


def read(path: Path, block: int) -> list[Request]:
    """The requests of a JSONL trace in Mooncake's format. block: tokens a hash stands for.

    A line without ``session_id`` is a session of its own. Raises `TraceError` for a file that cannot be read, and for
    a line that is no request, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not at U+2028, which a JSON string may hold
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TraceError(f"{path}: {why}. Give a JSONL trace, one request a line.") from error
    found = [_request(line, f"{path}:{number}", number, block) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise TraceError(f"{path}: it has no requests. Give a JSONL trace, one request a line.")
    return check(found, str(path))


def check(requests: list[Request], name: str) -> list[Request]:
    """The same requests; raises `TraceError` where a session's first has no time of arrival."""
    begun: set[str] = set()
    for request in requests:
        if request.session not in begun and request.timestamp is None:
            raise TraceError(
                f"{name}: the first request of session {request.session} has no timestamp, so it never arrives. Give "
                "each session's first request its milliseconds from the beginning."
            )
        begun.add(request.session)
    return requests


def _request(line: str, where: str, number: int, block: int) -> Request:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: it is not JSON. Each line must be one request.") from error
    if not isinstance(row, dict):
        raise TraceError(f"{where}: it holds a {type(row).__name__}. Each line must be an object, one request.")

    def value(key: str, least: int) -> int:
        found = row.get(key)
        if type(found) is not int or found < least:
            raise TraceError(f"{where}: {key}={found!r} must be a whole number of at least {least}. Correct the line.")
        return found

    tokens, output = value("input_length", 1), value("output_length", 1)
    hashes = row.get("hash_ids")
    if not isinstance(hashes, list) or any(type(one) is not int or not 0 <= one < 1 << 64 for one in hashes):
        raise TraceError(
            f"{where}: hash_ids must be a list of whole numbers from 0 to 2**64 - 1, one a block. Correct the line."
        )
    if len(hashes) != -(-tokens // block):
        raise TraceError(
            f"{where}: {len(hashes)} hash_ids for input_length={tokens}, but blocks of {block} tokens are "
            f"{-(-tokens // block)}. Give the trace's own --trace-block; Mooncake's traces have 512."
        )
    when: dict[str, float] = {}
    for key in ("timestamp", "delay"):
        given = row.get(key)
        if given is not None:
            if type(given) not in (int, float) or not 0 <= given < 1e12:
                raise TraceError(f"{where}: {key}={given!r} must be milliseconds, 0 or more. Correct the line.")
            when[key] = float(given)
    if len(when) != 1:
        raise TraceError(f"{where}: a request has either a timestamp or a delay, not {len(when)} of them. Give one.")
    session = row.get("session_id")
    if session is None:
        session = f"line-{number}"
    if not isinstance(session, str) or any("\ud800" <= one <= "\udfff" for one in session):
        raise TraceError(f"{where}: session_id={session!r} must be text, or left out. Correct the line.")
    return Request(session, tokens, output, tuple(hashes), when.get("timestamp"), when.get("delay"))
