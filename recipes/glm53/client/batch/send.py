"""Sending a batch: a bound on what is under way, and patience with a server that is full or gone for a while."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from glm53.client.batch.requests import Entry, read
from glm53.client.batch.results import Results, answered, lost
from glm53.client.server import RETRIABLE, Server

__all__ = ["Policy", "Tally", "send"]

_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Policy:
    """How a batch is sent.

    concurrency: requests under way at once. patience_s: for how long one request is tried again. timeout_s: the longest
    answer. first_wait_s: before the second try; doubles with each, up to a minute, and is spread by half.
    """

    concurrency: int = 32
    patience_s: float = 3600.0
    timeout_s: float = 3600.0
    first_wait_s: float = 1.0


@dataclass
class Tally:
    """What this run did. sent: requests that got a result. Tokens are those the server counted."""

    sent: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def send(
    server: Server,
    source: Path,
    entries: list[Entry],
    results: Results,
    policy: Policy,
    changed: Callable[[Tally], None],
) -> Tally:
    """Send `entries` and add a result for each; `changed` is told after every result and every retry.

    Raises OSError if a result could not be written: everything under way is then given up, and sent again next time.
    """
    tally = Tally()
    waiting = iter(entries)
    limits = httpx.Limits(max_connections=policy.concurrency, max_keepalive_connections=policy.concurrency)
    timeout = httpx.Timeout(policy.timeout_s, connect=10.0)
    with source.open("rb") as file:
        async with httpx.AsyncClient(limits=limits, timeout=timeout, **server.options) as client:
            sender = _Sender(server, client, file, results, policy, tally, changed)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(policy.concurrency, len(entries))):
                    group.create_task(sender.work(waiting))
    return tally


@dataclass
class _Sender:
    server: Server
    client: httpx.AsyncClient
    file: BinaryIO
    results: Results
    policy: Policy
    tally: Tally
    changed: Callable[[Tally], None]

    async def work(self, waiting: Iterator[Entry]) -> None:
        """Take requests until there are none left."""
        for entry in waiting:
            result = await self._result(entry)
            self.results.add(result)
            self.tally.sent += 1
            self._count(result)
            self.changed(self.tally)

    async def _result(self, entry: Entry) -> dict[str, Any]:
        request = read(self.file, entry)
        content = json.dumps(request.body).encode()
        deadline = time.monotonic() + self.policy.patience_s
        wait = self.policy.first_wait_s
        while True:
            after = 0.0
            try:
                response = await self.client.post(
                    self.server.root + request.url, content=content, headers={"content-type": "application/json"}
                )
            except httpx.RequestError as error:
                outcome = lost(entry, _code(error), f"{type(error).__name__}: {error}")
            else:
                outcome = answered(entry, response.status_code, _request_id(response, entry), _body(response))
                if response.status_code not in RETRIABLE:
                    return outcome
                after = _seconds(response.headers.get("retry-after"))
            pause = max(after, wait * random.uniform(0.5, 1.0))
            if time.monotonic() + pause > deadline:
                return outcome
            self.tally.retries += 1
            self.changed(self.tally)
            await asyncio.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _count(self, result: dict[str, Any]) -> None:
        body = (result["response"] or {}).get("body")
        usage = (body.get("usage") if isinstance(body, dict) else None) or {}
        self.tally.prompt_tokens += usage.get("prompt_tokens") or 0
        self.tally.completion_tokens += usage.get("completion_tokens") or 0


def _code(error: httpx.RequestError) -> str:
    return "timeout" if isinstance(error, httpx.TimeoutException) else "connection_lost"


def _request_id(response: httpx.Response, entry: Entry) -> str:
    return response.headers.get("x-request-id") or entry.id


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return {"error": {"message": response.text, "type": "not_json"}}


def _seconds(value: str | None) -> float:
    """Seconds of a Retry-After header; the form with a date counts as none."""
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0
