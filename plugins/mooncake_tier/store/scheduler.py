"""The scheduler's side of the store connector: which blocks are in the store, which to load, which to store.

It never waits: a lookup is under way from the moment a request arrives, and until its deadline the request is passed
over. Blocks whose load failed are remembered, so that no request loads and fails for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mooncake_tier.client.operation import Operation
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import key_prefix
from mooncake_tier.store.messages import LoadOrder, StoreOrder, StoreOrders, StoreReport

if TYPE_CHECKING:
    from mooncake_tier.events.store_events import StoreEvents, Told

__all__ = ["StoreScheduler"]


@dataclass
class _Request:
    """saved: blocks from the first on that were offered to the store. found: first block and number of the last hit."""

    request: Any
    saved: int = 0
    lookup: Operation | None = None
    asked_at: float = 0.0
    found: tuple[int, int] = (0, 0)


@dataclass
class _Pinned:
    """A store order under way. waiting: workers that have not reported. told: what its event will say."""

    blocks: list[int]
    waiting: int
    hashes: set[bytes]
    told: Told | None


@dataclass
class StoreScheduler:
    """loads, saves: whether blocks are read and written. block_size: tokens. workers: of this engine.

    client: gives the client once the namespace is known, until then None. most_pinned: blocks that may wait to be
    stored. drop_last: whether the last block of a hit is computed anew, which a drafter needs that reads hidden states.
    """

    client: Callable[[], TierClient | None]
    block_size: int
    workers: int
    most_pinned: int
    loads: bool = True
    saves: bool = True
    save_decode: bool = True
    drop_last: bool = False
    events: StoreEvents | None = None
    pool: Any = None
    clock: Callable[[], float] = time.monotonic
    _requests: dict[str, _Request] = field(default_factory=dict)
    _ordered: dict[str, LoadOrder] = field(default_factory=dict)
    _loading: dict[str, tuple[set[bytes], Told | None]] = field(default_factory=dict)
    _pinned: dict[int, _Pinned] = field(default_factory=dict)
    _pins: int = 0
    _number: int = 0
    _asking: bool = False

    def add(self, request: Any) -> None:
        """A request arrived: ask at once, so that the answer is there when its turn comes."""
        tracked = self._requests[request.request_id] = _Request(request)
        if self.loads and not _comes_from_prefill(request):
            self._ask(tracked)

    def matched(self, request: Any, computed: int) -> int | None:
        """Tokens in the store beyond `computed`; None while that is not known. Changes nothing that counts."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or not self.loads or _comes_from_prefill(request):
            return 0
        tracked.found = (0, 0)
        if not self._ask(tracked):
            return None  # the workers tell the namespace with the first step
        assert tracked.lookup is not None
        outcomes = tracked.lookup.poll()
        if outcomes is None:
            self._asking = True
            return None
        first = computed // self.block_size
        # The last token is computed in any case, because its logits are needed.
        last = min((request.num_tokens - 1) // self.block_size, len(outcomes))
        count = next((at for at in range(first, last) if not outcomes[at].ok), max(first, last)) - first
        count = max(0, count - 1) if self.drop_last else count
        tracked.found = (first, count)
        return count * self.block_size

    def allocated(self, request: Any, block_ids: list[int], external: int) -> None:
        """Blocks for `external` tokens of the last match were allocated: they are to be loaded. 0 means another way."""
        if not external:
            return
        tracked = self._requests[request.request_id]
        first, count = tracked.found
        wanted = -(-external // self.block_size)
        assert 0 < wanted <= count, f"{external} tokens to load, {count} blocks matched"
        hashes = [bytes(one) for one in request.block_hashes[first : first + wanted]]
        blocks = list(zip(hashes, block_ids[first : first + wanted], strict=True))
        self._ordered[request.request_id] = LoadOrder(request.request_id, blocks)
        self._loading[request.request_id] = (set(hashes), self._tell(request, first, wanted))

    def finished(self, request: Any) -> None:
        """A request has ended. What is being loaded or stored for it goes on."""
        self._requests.pop(request.request_id, None)

    def orders(self, output: Any) -> StoreOrders:
        """This step's orders. output: vLLM's `SchedulerOutput`, complete but for the connector's part."""
        orders = StoreOrders(
            loads=list(self._ordered.values()),
            idle=not output.total_num_scheduled_tokens,
            asking=self._asking,
            named=self.client() is not None,
        )
        self._ordered, self._asking = {}, False
        if self.saves:
            for name, scheduled in output.num_scheduled_tokens.items():
                tracked = self._requests.get(name)
                if tracked is not None and (order := self._store(tracked, scheduled, output)):
                    orders.stores.append(order)
        return orders

    def reported(self, report: StoreReport | None, received: set[str]) -> None:
        """What the workers say. received: requests whose loads are over on all of them."""
        if report is not None and report.unloaded:
            self._remember(report.unloaded)
        for name in received & self._loading.keys():
            hashes, told = self._loading.pop(name)
            if told is not None and self.events is not None:
                self.events.stored(told, hashes)
        if report is not None:
            for number, count in report.done.items():
                pinned = self._pinned[number]
                pinned.waiting -= count
                pinned.hashes -= report.unstored
                if not pinned.waiting:
                    self._unpin(number)

    @property
    def pending(self) -> bool:
        """Whether a step is needed although no request is: to learn that blocks are stored, or to tell events."""
        return bool(self._pinned) or (self.events is not None and self.events.waiting)

    @property
    def storing(self) -> bool:
        """Whether blocks are on their way to the store."""
        return bool(self._pinned)

    def forget(self) -> None:
        """Nothing of what was looked up holds any more."""
        for tracked in self._requests.values():
            tracked.lookup = None

    def _remember(self, unloaded: set[bytes]) -> None:
        """Blocks that could not be read are not promised again for a while, whatever the reason."""
        client = self.client()
        assert client is not None
        client.failed_loads.add(self._prefix(client) + one.hex() for one in unloaded)
        self.forget()
        for hashes, _ in self._loading.values():
            hashes -= unloaded

    def _ask(self, tracked: _Request) -> bool:
        """Look up all blocks of a request, unless that was done a short while ago; False if it cannot be done yet."""
        client = self.client()
        if client is None:
            return False
        # A lookup grants leases; before half of them is over, the load must have begun.
        recent = self.clock() - tracked.asked_at < client.options.lease_s / 2
        if tracked.lookup is None or not recent or len(tracked.lookup.blocks) != len(tracked.request.block_hashes):
            prefix = self._prefix(client)
            tracked.lookup = client.submit_lookup([prefix + one.hex() for one in tracked.request.block_hashes])
            tracked.asked_at = self.clock()
        return True

    def _store(self, tracked: _Request, scheduled: int, output: Any) -> StoreOrder | None:
        """The blocks of a request that are full after this step and were not offered before."""
        request, client = tracked.request, self.client()
        if client is not None and not client.breaker.allows:
            return None  # later, if it works again while the request runs
        tokens = min(request.num_computed_tokens + scheduled, request.num_tokens)
        if not self.save_decode:
            tokens = min(tokens, request.num_prompt_tokens)
        full = min(tokens // self.block_size, len(request.block_hashes))
        room = self.most_pinned - self._pins
        first, last = tracked.saved, min(full, tracked.saved + max(0, room))
        if first >= last:
            return None
        found = tracked.lookup.outcomes if tracked.lookup is not None else []
        wanted = [at for at in range(first, last) if not (at < len(found) and found[at].ok)]
        tracked.saved = last
        if not wanted:
            return None
        (block_ids, *_) = output.kv_connector_block_state.get_block_ids(request.request_id)
        hashes = [bytes(request.block_hashes[at]) for at in wanted]
        blocks = [block_ids[at] for at in wanted]
        self._number += 1
        told = self._tell(request, wanted[0], wanted[-1] + 1 - wanted[0])
        self._pinned[self._number] = _Pinned(blocks, self.workers, set(hashes), told)
        self._pins += len(blocks)
        # A reference keeps a block as it is until all workers have stored it, also after its request is gone.
        self.pool.touch([self.pool.blocks[one] for one in blocks])
        return StoreOrder(self._number, list(zip(hashes, blocks, strict=True)))

    def _unpin(self, number: int) -> None:
        done = self._pinned.pop(number)
        self._pins -= len(done.blocks)
        # The end of a prompt first, so that its beginning is evicted last.
        self.pool.free_blocks(self.pool.blocks[one] for one in reversed(done.blocks))
        client = self.client()
        if client is not None:
            prefix = self._prefix(client)
            client.failed_loads.forget(prefix + one.hex() for one in done.hashes)
        if done.told is not None and self.events is not None:
            self.events.stored(done.told, done.hashes)

    def _tell(self, request: Any, first: int, count: int) -> Told | None:
        return self.events.describe(request, first, count) if self.events is not None else None

    @staticmethod
    def _prefix(client: TierClient) -> str:
        return key_prefix(client.namespace)


def _comes_from_prefill(request: Any) -> bool:
    """Whether another connector brings the prompt's blocks from the prefill side."""
    return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))
