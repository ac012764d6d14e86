"""The worker's side of the store connector: moves blocks between vLLM's cache and the store, and says what came of it.

Nothing here waits for the store: each call is an `Operation` that is asked in later steps.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mooncake_tier.client.operation import Block, Operation
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import SettingRefused
from mooncake_tier.keys import key_prefix
from mooncake_tier.store.blocks import BlockMemory
from mooncake_tier.store.messages import LoadOrder, StoreOrder, StoreOrders, StoreReport

__all__ = ["StoreWorker"]

_log = logging.getLogger("vllm.mooncake_tier")

#: Longest wait in seconds in a step that computes nothing, instead of asking again at once.
_IDLE_S = 0.001


@dataclass
class _Moving:
    """Blocks on their way. calls: each operation with the hashes and ids of its blocks."""

    calls: list[tuple[Operation, Sequence[tuple[bytes, int]]]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether every outcome is known and nobody touches the blocks' memory any more."""
        return all(call.poll() is not None and call.released for call, _ in self.calls)

    @property
    def missed(self) -> Iterator[tuple[bytes, int]]:
        """The blocks whose outcome was not OK."""
        for call, blocks in self.calls:
            for block, outcome in zip(blocks, call.outcomes, strict=True):
                if not outcome.ok:
                    yield block


class StoreWorker:
    """client: connected, in the namespace of this deployment.

    replica, replicas: which of the workers that hold the same bytes this one is, and how many they are; they share the
    storing among them, and each loads everything. fence: makes an event of the device that says when the step's
    kernels have run, or None where a step is over when it returns.
    """

    def __init__(
        self, client: TierClient, replica: int = 0, replicas: int = 1, fence: Callable[[], Any] = lambda: None
    ) -> None:
        self.client = client
        self._replica, self._replicas, self._fence = replica, replicas, fence
        self._prefix = key_prefix(client.namespace)
        self._memory: BlockMemory | None = None
        self._unsent: deque[tuple[Any, StoreOrder]] = deque()
        self._loading: dict[str, _Moving] = {}
        self._storing: dict[int, _Moving] = {}
        self._invalid: set[int] = set()
        self._report = StoreReport(client.namespace)
        self._named = False

    def register(self, memory: BlockMemory, regions: Mapping[int, int]) -> None:
        """Tell the transport of the caches. regions: address -> bytes of each allocation.

        Raises `SettingRefused` if it does not take one, or if a block cannot be moved in one call.
        """
        options = self.client.options
        if len(memory.runs) + 1 > options.batch_pieces:
            raise SettingRefused(
                f"a block of {len(memory.runs)} pieces with batch_pieces={options.batch_pieces}",
                "a block is moved in one call",
                f"batch_pieces of at least {len(memory.runs) + 1}",
                "Raise it, or use a layout whose blocks are in one piece (vllm_blhnc)",
            )
        for address, nbytes in regions.items():
            self.client.register(address, nbytes)
        self._memory = memory

    def begin_loads(self, orders: StoreOrders) -> None:
        """Start reading what is ordered."""
        for order in orders.loads:
            self._loading[order.request_id] = self._load(order)

    def begin_stores(self, orders: StoreOrders) -> None:
        """Start writing what is ordered, once the step that computes it is over."""
        if orders.stores:
            fence = self._fence()
            self._unsent += [(fence, order) for order in orders.stores]
        self._named = orders.named
        self._send()

    def loaded(self, orders: StoreOrders) -> set[str]:
        """Requests whose loads are over, well or not. A step that computes nothing waits a moment for them."""
        self._send()
        if orders.idle and (moving := [*self._loading.values(), *self._storing.values()]):
            moving[0].calls[-1][0].wait_released(_IDLE_S)
        elif orders.idle and orders.asking:
            time.sleep(_IDLE_S)
        for number in [number for number, moving in self._storing.items() if moving.over]:
            self._report.unstored |= {block_hash for block_hash, _ in self._storing.pop(number).missed}
            self._report.done[number] = 1
        over = {name for name, moving in self._loading.items() if moving.over}
        for name in over:
            for block_hash, block in self._loading.pop(name).missed:
                self._report.unloaded.add(block_hash)
                self._invalid.add(block)
        return over

    def take_invalid(self) -> set[int]:
        """Ids of blocks that were not loaded, once; all of them, so that none is taken for computed."""
        taken, self._invalid = self._invalid, set()
        return taken

    def take_report(self) -> StoreReport | None:
        """What the scheduler must know, once; None if nothing."""
        report = self._report
        if self._named and not (report.done or report.unstored or report.unloaded):
            return None
        self._report = StoreReport(self.client.namespace)
        return report

    def _send(self) -> None:
        """Submit stores whose blocks are computed."""
        while self._unsent and (self._unsent[0][0] is None or self._unsent[0][0].query()):
            _, order = self._unsent.popleft()
            mine = [one for one in order.blocks if one[0][-1] % self._replicas == self._replica]
            if not mine:
                self._report.done[order.number] = 1
                continue
            self._storing[order.number] = moving = _Moving()
            for at, part in enumerate(self._parts(mine)):
                seconds = self.client.options.store_s * (1 + at)
                moving.calls.append((self.client.store(self._blocks(part), seconds), part))

    def _load(self, order: LoadOrder) -> _Moving:
        """One call a batch, so that several threads share the work; each waits for those before it."""
        options, moving = self.client.options, _Moving()
        for at, part in enumerate(self._parts(order.blocks)):
            seconds = options.load_s * (1 + at // options.load_threads)
            moving.calls.append((self.client.load(self._blocks(part), seconds, options.staging_bytes > 0), part))
        return moving

    def _parts(self, blocks: Sequence[tuple[bytes, int]]) -> Iterator[Sequence[tuple[bytes, int]]]:
        assert self._memory is not None, "register_kv_caches comes before the first step"
        most = max(1, self.client.options.batch_bytes // self._memory.nbytes)
        for begin in range(0, len(blocks), most):
            yield blocks[begin : begin + most]

    def _blocks(self, part: Sequence[tuple[bytes, int]]) -> list[Block]:
        assert self._memory is not None
        return [Block(self._prefix + block_hash.hex(), self._memory.parts(block)) for block_hash, block in part]
