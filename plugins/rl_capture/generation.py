"""Stands between vLLM's engine and who serves its outputs: takes a copy, and passes on what the client asked for."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from rl_capture import metrics
from rl_capture.answers import Request
from rl_capture.recorder import Recorder
from rl_capture.weights import UNDECLARED, Weights

__all__ = ["MARK", "Capture", "wanted"]

_log = logging.getLogger(__name__)

#: Key in the sampling parameters' `extra_args` of requests whose log-probabilities only the record has.
MARK = "rl_capture"

#: Seconds to wait for the engine's word on its weights, after which the record says null.
_PATIENCE = 10.0


class Capture:
    """The capture of one engine.

    recorder: takes finished answers. weights: what is known of them. ask: asks the engine for its weights' version, or
    None where outputs have it. sample: share of sessions.
    """

    def __init__(
        self, recorder: Recorder, weights: Weights, ask: Callable[[], Any] | None = None, sample: float = 1.0
    ) -> None:
        self.recorder, self.weights = recorder, weights
        self._ask, self._sample = ask, sample
        self._asked: set[asyncio.Task[None]] = set()

    def generate(
        self, original: Callable[..., Any], prompt: Any, params: Any, name: str, more: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """What vLLM's `AsyncLLM.generate` returns, recorded if it should be. original: bound to the engine."""
        skipped = None
        if not wanted(name if more.get("session_id") is None else more["session_id"], self._sample):
            skipped = "sampled_out"
        elif not _plain(prompt, params):
            skipped = "skipped"
        if skipped:
            metrics.count("records", result=skipped)
            return original(prompt, params, name, **more)
        return self._recorded(original, prompt, params, name, more)

    async def _recorded(
        self, original: Callable[..., Any], prompt: Any, params: Any, name: str, more: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        adapter = getattr(more.get("lora_request"), "lora_name", None)
        deltas = params.output_kind.name == "DELTA"
        request: Request | None = Request(name, more.get("session_id"), adapter, params, deltas)
        assert request is not None
        first = self._begin(request)
        hidden = params.num_logprobs is None
        reason = "error"
        try:
            asked = _with_logprobs(params) if hidden else params
            async with aclosing(original(prompt, asked, name, **more)) as outputs:
                async for output in outputs:
                    request = self._take(request, output)
                    if hidden:
                        for one in output.outputs:
                            one.logprobs = one.cumulative_logprob = None
                    if output.finished and request is not None:
                        # Before the client sees the end, so that what it has seen is on its way to the disk.
                        self._end(request, first)
                        request = None
                    yield output
        except (GeneratorExit, asyncio.CancelledError):
            reason = "abort"
            raise
        finally:
            if request is not None:
                request.broke(reason)
                self._end(request, first)

    def _take(self, request: Request | None, output: Any) -> Request | None:
        """The request with this output, or None once taking one has failed: serving goes on all the same."""
        try:
            if request is not None:
                request.take(output)
        except Exception:
            _log.exception("an output could not be recorded")
            metrics.count("records", result="failed")
            return None
        return request

    def _begin(self, request: Request) -> asyncio.Task[None] | None:
        request.epochs[0], request.begin = self.weights.epoch, self.weights.declared
        return None if request.begin is not None else self._asking(request, "begin")

    def _end(self, request: Request, first: asyncio.Task[None] | None) -> None:
        if not request.answers:
            return  # ended before its first token: nothing to learn from
        request.epochs[1], request.end = self.weights.epoch, self.weights.declared
        second = None if request.end is not None else self._asking(request, "end")
        waits = [task for task in (first, second) if task is not None and not task.done()]
        if not waits:
            self.recorder.offer(request, request.tokens)
            return
        self._keep(asyncio.ensure_future(self._offer_after(request, waits)))

    async def _offer_after(self, request: Request, waits: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(waits, timeout=_PATIENCE)
        self.recorder.offer(request, request.tokens)

    def _asking(self, request: Request, end: str) -> asyncio.Task[None] | None:
        """A task that fills in one end's version; the engine answers between two steps, and nobody waits for it."""
        if self._ask is None:
            return None
        return self._keep(asyncio.ensure_future(self._answered(request, end)))

    async def _answered(self, request: Request, end: str) -> None:
        assert self._ask is not None
        try:
            version = await asyncio.wait_for(self._ask(), _PATIENCE)
        except Exception as error:  # an engine that died, or is busy for long
            _log.debug("the engine did not tell its weights' version: %s", error)
            return
        setattr(request, end, None if version == UNDECLARED else version)

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._asked.add(task)  # the loop itself keeps tasks by weak references only
        task.add_done_callback(self._asked.discard)
        return task


def wanted(session: str, sample: float) -> bool:
    """Whether a session is in the sample: always the same answer, so that a session is recorded whole or not at all."""
    number = int.from_bytes(hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return number < sample * 2**64


def _plain(prompt: Any, params: Any) -> bool:
    """Whether ids tell the prompt, and the answer is a client's: prefill for another worker makes one token for it."""
    if ((params.extra_args or {}).get("kv_transfer_params") or {}).get("do_remote_decode"):
        return False
    if not isinstance(prompt, dict):
        return isinstance(prompt, str)
    known = prompt.get("type", "token") == "token"
    return known and not any(prompt.get(key) for key in ("prompt_embeds", "multi_modal_data"))


def _with_logprobs(params: Any) -> Any:
    """The same parameters, with the log-probability of each chosen token."""
    changed = copy.copy(params)
    changed.logprobs = 0
    if params.prompt_logprobs is None:  # those a client would get in this form, too, and without their texts
        changed.flat_logprobs = True
        changed.extra_args = {**(params.extra_args or {}), MARK: True}
    return changed
