"""Which handoffs decode reads: those that hold the blocks it needs, and each of them once.

A handoff is what prefill answers: where its blocks lie until decode has read them. Then prefill hands the blocks to
others, but nothing in NIXL or vLLM stops a second read, for a client's retry, say, and decode would go on from another
request's KV. A handoff with fewer blocks than the prompt needs ends the whole engine in stock.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

from vllm_blhnc.settings import Settings

__all__ = ["CheckedHandoffs"]

_log = logging.getLogger("vllm.vllm_blhnc")

#: Handoffs to remember: hours of requests, some megabytes.
_REMEMBERED = 1 << 16


class CheckedHandoffs:
    """Mixin in front of stock's pull worker; a refused handoff fails its request and nothing else."""

    # Supplied by the stock worker class, and by the mixin of this plugin behind it.
    _recv_failures: Any
    _settings: Settings
    xfer_stats: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._read_for: OrderedDict[tuple[str, str], str] = OrderedDict()  # (engine, its request) -> our request
        super().__init__(*arguments, **options)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        if self._settings.block_rows and (why := self._refused(req_id, meta)):
            _log.error("request %s fails, nothing is read for it: %s", req_id, why)
            self.xfer_stats.record_failed_transfer()
            # As stock does with a read that would come too late; the peer is not to blame.
            self._handle_failed_transfer(  # type: ignore[attr-defined]
                req_id, None, self._recv_failures, record_failed_transfer=False
            )
            return
        super()._read_blocks_for_req(req_id, meta)  # type: ignore[misc]

    def _refused(self, req_id: str, meta: Any) -> str | None:
        needed = [len(group) for group in meta.local_block_ids]
        if not any(needed):
            return None  # all of it is cached here; prefill only gets told
        remote = meta.remote
        given = [len(group) for group in remote.block_ids]
        if len(given) != len(needed) or any(a < b for a, b in zip(given, needed, strict=True)):
            return (
                f"its handoff has {given} blocks of prefill request {remote.request_id}, the prompt needs {needed}. "
                "Send decode the same prompt as prefill, and remote_block_ids as prefill returned them."
            )
        # A read that has to wait for a new handshake comes here again, for the same request.
        if self._read_for.setdefault((remote.engine_id, remote.request_id), req_id) != req_id:
            return (
                f"its handoff, prefill request {remote.request_id} of engine {remote.engine_id}, was read before, and "
                "prefill may have given the blocks to another request since. A handoff serves one request: let "
                "prefill compute the prompt again."
            )
        if len(self._read_for) > _REMEMBERED:
            self._read_for.popitem(last=False)
        return None
