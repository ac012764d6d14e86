"""A worker's messages as they pile up: what came while the last ones were being handled is taken as one.

Each message costs time on its way into Python, and each chunk on its way out, about ten times what its tokens cost in
between. While the frontend keeps up, every message is a chunk of its own; when it does not, chunks grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

__all__ = ["Inbox", "merged"]

_draining: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
_LISTS = ("log_probs", "top_logprobs")


class Inbox:
    """Reads a stream to its end in a task of its own, which `close` ends. stream: Dynamo's routed stream."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self._messages: list[Any] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._fill(stream))

    async def _fill(self, stream: AsyncIterator[Any]) -> None:
        try:
            async for message in stream:
                self._messages.append(message)
                self._news.set()
        except asyncio.CancelledError:
            pass  # by `close`; kept in the task, the exception would keep the stream, and so the worker, alive
        finally:
            self._news.set()

    async def batches(self) -> AsyncGenerator[list[Any], None]:
        """The messages that have come since the last batch, at least one. Raises what the stream raises."""
        while not self._task.done() or self._messages:
            await self._news.wait()
            self._news.clear()
            batch, self._messages = self._messages, []
            if batch:
                yield batch
        await self._task

    def close(self, *, ended: bool = False) -> None:
        """Stop reading: without its stream the worker stops. ended: the worker has stopped by itself, so what is left
        of its stream is read, which Dynamo would else note as a cancelled request."""
        if not ended:
            self._task.cancel()
        elif not self._task.done():
            _draining.add(self._task)
            self._task.add_done_callback(_drained)


def _drained(task: asyncio.Task[None]) -> None:
    """Forget a task; what its stream raised behind the end of the output concerns nobody."""
    _draining.discard(task)
    if not task.cancelled():
        task.exception()


def merged(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of one choice that follow each other as one: all tokens, the last reason, the last usage."""
    found: list[dict[str, Any]] = []
    for message in messages:
        last = found[-1] if found else None
        if last is None or (last.get("index") or 0) != (message.get("index") or 0) or last.get("finish_reason"):
            found.append(message)
            continue
        joined = {**last, **{key: value for key, value in message.items() if value is not None}}
        joined["token_ids"] = [*(last.get("token_ids") or ()), *(message.get("token_ids") or ())]
        for key in _LISTS:
            if last.get(key) is not None or message.get(key) is not None:
                joined[key] = [*_padded(last, key), *_padded(message, key)]
        found[-1] = joined
    return found


def _padded(message: dict[str, Any], key: str) -> list[Any]:
    """One entry for each token, so that positions stay right."""
    values, count = list(message.get(key) or ()), len(message.get("token_ids") or ())
    return (values + [None] * count)[:count]
