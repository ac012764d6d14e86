"""vLLM's KV events for blocks in the store, in the words that Dynamo's router understands.

Stock's connector says ``cpu`` where vLLM and Dynamo say ``CPU``, and never says that a block is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from mooncake_tier.events.evictions import Evictions
from mooncake_tier.vllm_stock import block_extra_keys, lookahead

__all__ = ["StoreEvents", "Told"]


@dataclass
class Told:
    """Consecutive blocks of a request, as an event describes them. parent: hash of the block before them.

    tokens, extra: of each block. later: tokens behind each block that its hash covers; None where it covers none.
    """

    parent: bytes | None
    hashes: list[bytes]
    tokens: list[list[int]]
    extra: list[Any]
    later: list[list[int]] | None
    lora_id: int | None
    lora_name: str | None


class StoreEvents:
    """Events since the last `take`.

    prefix: gives what keys begin with. block_size: tokens. medium: what the router takes the store for. kind: vLLM's
    name of the caches' kind. ahead: vLLM's ``num_hash_lookahead_tokens``, 0 before 0.33.
    """

    def __init__(
        self,
        evictions: Evictions,
        prefix: Callable[[], str],
        block_size: int,
        medium: str = MEDIUM_CPU,
        kind: str | None = None,
        ahead: int = 0,
    ) -> None:
        self._evictions, self._prefix, self._block_size = evictions, prefix, block_size
        self._medium, self._kind, self._ahead = medium, kind, ahead
        self._events: list[KVCacheEvent] = []

    def describe(self, request: Any, first: int, count: int) -> Told:
        """What to tell of blocks `first` to `first + count` of a request, once they are in the store."""
        size, tokens = self._block_size, request.all_token_ids
        starts = range(first * size, (first + count) * size, size)
        lora = request.lora_request
        return Told(
            parent=bytes(request.block_hashes[first - 1]) if first else None,
            hashes=[bytes(request.block_hashes[at]) for at in range(first, first + count)],
            tokens=[list(tokens[start : start + size]) for start in starts],
            extra=block_extra_keys(request, starts, size, self._ahead),
            later=[list(tokens[start + size : start + size + self._ahead]) for start in starts]
            if self._ahead
            else None,
            lora_id=lora.adapter_id if lora else None,
            lora_name=lora.name if lora else None,
        )

    def stored(self, told: Told, hashes: set[bytes]) -> None:
        """Those of the described blocks are in the store; what was told before is not told again."""
        prefix = self._prefix()
        new = set(self._evictions.announce(prefix + one.hex() for one in told.hashes if one in hashes))
        run: list[int] = []
        for at, one in enumerate(told.hashes):
            if prefix + one.hex() in new:
                run.append(at)
            elif run:
                self._events.append(self._stored(told, run))
                run = []
        if run:
            self._events.append(self._stored(told, run))

    @property
    def waiting(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._events) or self._evictions.pending

    def take(self) -> list[KVCacheEvent]:
        """Events since the last call, in their order; blocks that are gone come last."""
        taken, self._events = self._events, []
        if gone := self._evictions.take():
            hashes = [maybe_convert_block_hash(bytes.fromhex(key.rpartition("/")[2])) for key in gone]
            taken.append(BlockRemoved(block_hashes=hashes, medium=self._medium, group_idx=0))
        return taken

    def forget(self) -> None:
        """The router forgot everything, and is told again of what is stored or read again."""
        self._evictions.forget()
        self._events.clear()

    def look(self) -> None:
        """Look for blocks that are gone now, and not at the next time; takes as long as the master takes."""
        self._evictions.look()

    def close(self) -> None:
        """End the thread that looks for evicted blocks."""
        self._evictions.close()

    def _stored(self, told: Told, run: list[int]) -> BlockStored:
        first, last = run[0], run[-1] + 1
        parent = told.hashes[first - 1] if first else told.parent
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(one) for one in told.hashes[first:last]],
            parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
            token_ids=[token for block in told.tokens[first:last] for token in block],
            block_size=self._block_size,
            lora_id=told.lora_id,
            medium=self._medium,
            lora_name=told.lora_name,
            extra_keys=told.extra[first:last] if any(told.extra) else None,
            group_idx=0,
            kv_cache_spec_kind=self._kind,
            **lookahead(told.later[first:last] if told.later is not None else None),
        )
