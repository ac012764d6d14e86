"""Which free blocks a request gets: runs of consecutive ids, so that a transfer needs fewer descriptors.

vLLM keeps its free blocks in one queue: blocks without cached content in front, then cached blocks, the least
recently used first. A request gets the front of the queue, in the order in which earlier requests gave the blocks
back, which is backwards. `RunQueue` takes the queue's place and changes only which blocks are chosen *among those
that may go*, and in which order they are handed out:

- blocks without cached content are all alike, so the choice among them is free;
- cached blocks become candidates in stock's order, when stock would evict them. An `eviction window` adds that many
  more of the oldest.

Without a window exactly the blocks are evicted that stock would evict, at the same moment. With a window of W blocks a
request for n blocks evicts only some of the n + W least recently used ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_blhnc.free_runs import FreeRuns

__all__ = ["AllocationError", "RunQueue", "hand_out_runs", "refuse_hisparse"]

_log = logging.getLogger("vllm.vllm_blhnc")


class AllocationError(RuntimeError):
    """Blocks cannot be handed out in runs as the deployment asks. Nothing was served."""


class RunQueue(FreeKVCacheBlockQueue):
    """A free block queue that hands out runs.

    blocks: all blocks of the pool, by id. free: those that are free, without cached content.
    eviction_window: the number of cached blocks, the oldest ones, among which to choose; 0 keeps stock's order.

    The stock class keeps cached blocks in order; the candidates (blocks without content, and the window) are in
    `FreeRuns`. Blocks of the window stay cached, and can be hit, until they are handed out.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock], free: Iterable[KVCacheBlock], eviction_window: int):
        super().__init__([])
        self._blocks = blocks
        self._window = eviction_window
        self._candidates = FreeRuns(len(blocks))
        self._cached: set[int] = set()  # candidates of the window
        self._after: int | None = None
        self.prepend_n(list(free))

    @contextmanager
    def following(self, block_id: int | None) -> Iterator[None]:
        """Blocks handed out inside are to follow this one."""
        self._after = block_id
        try:
            yield
        finally:
            self._after = None

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """`n` blocks in as few runs as the candidates allow; the caller makes sure that so many are free."""
        if n > len(self._candidates) - len(self._cached):  # stock goes on to the cached ones now
            self._add_oldest(self._without_content())
        if n > len(self._candidates) - len(self._cached):
            wanted = min(n + self._window, self.num_free_blocks) - len(self._candidates)
            self._cached.update(self._add_oldest(wanted))
        ids = self._candidates.take(n, self._after)
        self._cached.difference_update(ids)
        self.num_free_blocks -= n
        if ids and self._after is not None:
            self._after = ids[-1]
        return [self._blocks[block_id] for block_id in ids]

    def popleft(self) -> KVCacheBlock:
        """One block; raises ValueError if none is free."""
        if not self.num_free_blocks:
            raise ValueError("no free block is left")
        return self.popleft_n(1)[0]

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a block that is used again; raises RuntimeError if it is not free."""
        if block.prev_free_block is not None:
            super().remove(block)
            return
        try:
            self._candidates.remove(block.block_id)
        except KeyError:
            raise RuntimeError(f"block {block.block_id} is not free, so it cannot leave the free blocks") from None
        self._cached.discard(block.block_id)
        self.num_free_blocks -= 1

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Free blocks without cached content; their order means nothing."""
        self._candidates.add(block.block_id for block in blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Candidates by id, then the others as they will become candidates."""
        return [self._blocks[block_id] for block_id in self._candidates] + super().get_all_free_blocks()

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """The blocks of `get_all_free_blocks` behind the cursor; all that are ordered, if it is no longer one."""
        if cursor is None:
            yield from (self._blocks[block_id] for block_id in self._candidates)
        yield from super().iter_blocks_after(
            cursor if cursor is not None and cursor.prev_free_block is not None else None
        )

    def _without_content(self) -> int:
        """Blocks at the front of the order that hold nothing: the prefix cache was reset, or a load failed."""
        count, block = 0, self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail and block.block_hash is None:
            count, block = count + 1, block.next_free_block
        return count

    def _add_oldest(self, count: int) -> list[int]:
        if count <= 0:
            return []
        ids = [block.block_id for block in super().popleft_n(count)]
        self._candidates.add(ids)
        self.num_free_blocks += count  # they are as free as before
        return ids


def refuse_hisparse(vllm_config: Any) -> None:
    """Raise `AllocationError` with HiSparse, which keeps reading blocks that are free, and wants them to go last."""
    if vllm_config.attention_config.hisparse_config is not None:
        raise AllocationError(
            "hisparse_config is set: HiSparse goes on reading blocks that it has freed, so the order in which blocks "
            'go matters. Serve without HiSparse, or set kv_connector_extra_config.blhnc.block_allocation="stock".'
        )


def hand_out_runs(pool: Any, eviction_window: int) -> None:
    """Let a fresh vLLM ``BlockPool`` hand out runs.

    Raises `AllocationError` if the pool is in use, if something else has replaced its queue, or if the window
    leaves no block to keep.
    """
    queue = pool.free_block_queue
    if type(queue) is not FreeKVCacheBlockQueue:
        raise AllocationError(
            f"vLLM's block pool has a {type(queue).__module__}.{type(queue).__qualname__} for its free blocks, but "
            "only vLLM's own queue can be replaced. Remove the plugin that put it there, or set "
            'kv_connector_extra_config.blhnc.block_allocation="stock".'
        )
    usable = pool.num_gpu_blocks - 1  # one block stands for "no block" and is never handed out
    if eviction_window >= usable:
        raise AllocationError(
            f"kv_connector_extra_config.blhnc.eviction_window={eviction_window} blocks, but this engine has "
            f"{usable}: nothing would be kept in cache. Use a few times the blocks of one prefill chunk, or give the "
            "KV cache more memory."
        )
    if queue.num_free_blocks != usable:
        raise AllocationError(
            f"{usable - queue.num_free_blocks} blocks of the pool are in use before the first request, so the free "
            'blocks cannot be taken over. Set kv_connector_extra_config.blhnc.block_allocation="stock" and report '
            "this with the engine's arguments."
        )
    pool.free_block_queue = RunQueue(pool.blocks, queue.popleft_n(usable), eviction_window)
    _log.info("vllm_blhnc: %d blocks are handed out in runs, eviction window %d", usable, eviction_window)
