"""What vLLM's offloading scheduler knows of requests that wait, as `mooncake_tier.offloading.prefetch` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadKey

from mooncake_tier.offloading.prefetch import Chunk, State
from mooncake_tier.vllm_stock import manager_lock, series

__all__ = ["WaitingRequests"]

_STATES = {
    LookupResult.HIT: State.READY,
    LookupResult.HIT_PENDING: State.LOADING,
    LookupResult.RETRY: State.ASKED,
    LookupResult.MISS: State.ABSENT,
}


class WaitingRequests:
    """scheduler: stock's `OffloadingConnectorScheduler`. Chunks are those of full attention; the rest is stock's.

    name: the key in the store of one of vLLM's.
    """

    def __init__(self, scheduler: Any, name: Callable[[OffloadKey], str]) -> None:
        self._scheduler, self._name = scheduler, name
        self.block_pool: Any = None
        """The GPU's, once vLLM has made it."""

    def chunks(self, request: str) -> Iterator[Chunk]:
        """Of the first full-attention group, without those at the beginning that the GPU has."""
        status = self._scheduler._req_status.get(request)
        group = self._group()
        if status is None or group is None:
            return
        status.update_offload_keys()
        at, config = group
        keys = status.group_states[at].offload_keys
        begin, hashes = 0, status.req.block_hashes
        while self.block_pool is not None and begin < len(keys):
            last = hashes[(begin + 1) * config.hashes_per_chunk - 1]
            if self.block_pool.get_cached_block(last, [config.group_idx]) is None:
                break
            begin += 1
        for index in range(begin, len(keys)):
            yield Chunk(index, keys[index])

    def peek(self, request: str, chunk: Chunk) -> State:
        """Where the chunk is in host memory."""
        status = self._scheduler._req_status[request]
        with manager_lock(self._scheduler):
            return _STATES[self._scheduler.manager.primary_tier.lookup(chunk.key, status.req_context)]

    def want(self, request: str, chunk: Chunk) -> State:
        """Load it if it is in the store."""
        status = self._scheduler._req_status[request]
        with manager_lock(self._scheduler):
            state = _STATES[self._scheduler.manager.lookup(chunk.key, status.req_context)]
        if state in (State.LOADING, State.READY) and (group := self._group()):
            # Stock describes a block to the router when the request's turn has come, which is too late by then.
            self._scheduler._events_tracker.record_lookup(status.req, group[1], chunk.index, chunk.key)
        return state

    def not_loaded(self, keys: Iterable[OffloadKey]) -> None:
        """What was described to the router for these, which did not come, is forgotten; 0.33 does so by itself."""
        described = self._scheduler._events_tracker._pending_event_metadata
        for key in keys if series() < "0.33" else ():
            if key in described and self._scheduler.manager.primary_tier.lookup(key, None) is LookupResult.MISS:
                described[key].active_residencies.discard((Medium.CPU, None))
                if not described[key].active_residencies:
                    del described[key]

    def names(self, request: str) -> list[str]:
        """Keys in the store of all chunks that a request has by now."""
        status = self._scheduler._req_status.get(request)
        group = self._group()
        if status is None or group is None:
            return []
        status.update_offload_keys()
        return [self._name(key) for key in status.group_states[group[0]].offload_keys]

    def _group(self) -> tuple[int, Any] | None:
        for at, config in enumerate(self._scheduler.config.kv_group_configs):
            if config.sliding_window_size_in_chunks is None:
                return at, config
        return None
