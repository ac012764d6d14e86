"""What the threads of a client do: cut a call into batches that the transport takes, make it, prove what came."""

from __future__ import annotations

import ctypes
import logging
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mooncake_tier.client.care import PROBE_BYTES
from mooncake_tier.client.figures import Counts
from mooncake_tier.client.integrity import TRAILER_BYTES, fault, trailer
from mooncake_tier.client.operation import Block, Operation, Outcome
from mooncake_tier.client.pressure import FailedLoads, Pauses
from mooncake_tier.options import Options
from mooncake_tier.stock import ABSENT, LEASE_OVER, NO_SPACE, NativeStore, all_failed

__all__ = ["Arena", "Work", "batches"]

_log = logging.getLogger("mooncake_tier")

#: Keys of one lookup call: 2,188 blocks of a 140,000-token prompt take 2 ms.
_KEYS = 4096


class Arena:
    """Memory of the client, from which one thread takes pieces for one batch at a time."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, nbytes)
        self._view: ctypes.Array[ctypes.c_char] | None = (ctypes.c_char * nbytes).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)

    def free(self) -> None:
        """Unmap it."""
        self._view = None
        self._map.close()


def batches(blocks: Sequence[Block], options: Options, staged: bool = False) -> Iterator[list[Block]]:
    """Cut blocks into lists that one call of Mooncake takes, in their order; a block is never cut."""
    most_bytes = min(options.batch_bytes, options.staging_bytes) if staged else options.batch_bytes
    batch: list[Block] = []
    pieces = nbytes = 0
    for block in blocks:
        more = len(block.parts) + 1
        if batch and (pieces + more > options.batch_pieces or nbytes + block.nbytes > most_bytes):
            yield batch
            batch, pieces, nbytes = [], 0, 0
        batch.append(block)
        pieces, nbytes = pieces + more, nbytes + block.nbytes
    if batch:
        yield batch


class Work:
    """The functions that lanes run. answered: told after each call of Mooncake whether the store works."""

    def __init__(
        self,
        native: NativeStore,
        namespace: str,
        options: Options,
        counts: Counts,
        failed_loads: FailedLoads,
        answered: Callable[[bool], None],
        clock: Callable[[], float],
    ) -> None:
        self._native, self.namespace, self._options = native, namespace, options
        self._counts, self._failed, self._answered, self._clock = counts, failed_loads, answered, clock
        self._pauses = Pauses()
        # A batch has at most half as many blocks as pieces. One region per thread: 0 stores, the others load.
        threads = options.load_threads + 1
        self._slot_bytes = options.batch_pieces // 2 * TRAILER_BYTES
        self._trailers = Arena(threads * self._slot_bytes + PROBE_BYTES)
        self.probe_memory = self._trailers.address + threads * self._slot_bytes
        self._staging = Arena(options.load_threads * options.staging_bytes) if options.staging_bytes else None

    @property
    def memory(self) -> list[tuple[int, int]]:
        """Address and bytes of what the client itself moves blocks through."""
        return [(arena.address, arena.nbytes) for arena in (self._trailers, self._staging) if arena]

    def free(self) -> None:
        """Unmap the client's own memory."""
        self._trailers.free()
        if self._staging:
            self._staging.free()

    def lookup(self, operation: Operation, thread: int) -> None:
        """Ask which keys are present."""
        outcomes: list[Outcome] = []
        for begin in range(0, len(operation.blocks), _KEYS):
            names = operation.keys[begin : begin + _KEYS]
            codes = self._native.exists(names)
            self._judge(operation, codes)
            outcomes += [
                Outcome.REMEMBERED if name in self._failed else _PRESENCE.get(code, Outcome.FAILED)
                for name, code in zip(names, codes, strict=True)
            ]
            if operation.settled:
                return
        operation.settle(outcomes)

    def load(self, operation: Operation, thread: int) -> None:
        """Read blocks and prove them; what does not prove itself is removed from the store."""
        outcomes: list[Outcome] = []
        for batch in batches(operation.blocks, self._options, operation.staged):
            places = self._places(batch, thread) if operation.staged else batch
            found = self._load_batch(places, operation, thread)
            outcomes += found
            if operation.settled or (operation.staged and not operation.touch(partial(_copy, batch, places, found))):
                return
        loaded = sum(block.nbytes for block, outcome in zip(operation.blocks, outcomes, strict=True) if outcome.ok)
        if operation.settle(outcomes):
            self._counts.add("loaded_bytes", loaded)

    def _load_batch(self, batch: list[Block], operation: Operation, thread: int) -> list[Outcome]:
        slots = self._slots(1 + thread)
        codes = self._native.get(*_call(batch, slots))
        self._judge(operation, codes)
        if operation.settled:  # too late: the memory may hold something else by now, so nothing is proven or removed
            return [Outcome.DEADLINE] * len(batch)
        if LEASE_OVER in codes and len(batch) > 1:  # fewer blocks take less time
            half = len(batch) // 2
            return [
                outcome
                for part in (batch[:half], batch[half:])
                for outcome in self._load_batch(part, operation, thread)
            ]
        outcomes = []
        for at, (block, code) in enumerate(zip(batch, codes, strict=True)):
            if code == ABSENT:
                self._counts.add("evicted")
                outcomes.append(Outcome.ABSENT)
            elif code != block.nbytes + TRAILER_BYTES:
                self._failed.add([block.key])
                outcomes.append(Outcome.FAILED)
            else:
                outcomes.append(self._prove(block, ctypes.string_at(slots + at * TRAILER_BYTES, TRAILER_BYTES)))
        return outcomes

    def _prove(self, block: Block, found: bytes) -> Outcome:
        wrong = fault(found, self.namespace, block.key, block.parts, self._options.checksum)
        if wrong is None:
            return Outcome.OK
        self._failed.add([block.key])
        self._counts.add("corrupt", 1, wrong.name.lower())
        code = self._native.remove(block.key)
        _log.error(
            "mooncake_tier: %s, %d bytes: %s; not used, %s",
            block.key,
            block.nbytes,
            wrong.value,
            "removed" if code == 0 else f"and removing it returned {code}",
        )
        return Outcome.CORRUPT

    def store(self, operation: Operation, thread: int) -> None:
        """Write the blocks that are not there, patiently while the pool is full."""
        outcomes: list[Outcome] = []
        for batch in batches(operation.blocks, self._options):
            outcomes += self._store_batch(batch, operation)
            if operation.settled:
                return
        operation.settle(outcomes)

    def _store_batch(self, batch: list[Block], operation: Operation) -> list[Outcome]:
        known = self._native.exists([block.key for block in batch])
        self._judge(operation, known)
        outcome = {
            block.key: Outcome.OK if code == 1 else Outcome.FAILED for block, code in zip(batch, known, strict=True)
        }
        for block in batch:  # what failed to load is stored anew, because the first writer of a key wins
            if outcome[block.key].ok and block.key in self._failed:
                self._native.remove(block.key)
                outcome[block.key] = Outcome.ABSENT
        missing = [block for block in batch if not outcome[block.key].ok]
        while missing and not all_failed(known):
            codes = self._put(missing)
            self._judge(operation, codes)
            outcome |= {block.key: _PUT.get(code, Outcome.FAILED) for block, code in zip(missing, codes, strict=True)}
            stored = [block for block, code in zip(missing, codes, strict=True) if code == 0]
            self._counts.add("stored_bytes", sum(block.nbytes for block in stored))
            self._failed.forget(block.key for block in stored)
            missing = [block for block, code in zip(missing, codes, strict=True) if code == NO_SPACE]
            if not missing:
                self._pauses.accepted()
                break
            self._counts.add("rejected_puts", len(missing))
            pause = self._pauses.rejected(some_fitted=bool(stored))
            if self._clock() + pause >= operation.deadline or operation.settled:
                break
            time.sleep(pause)
        return [outcome[block.key] for block in batch]

    def _put(self, blocks: list[Block]) -> list[int]:
        slots = self._slots(0)
        for at, block in enumerate(blocks):
            made = trailer(self.namespace, block.key, block.parts, self._options.checksum)
            ctypes.memmove(slots + at * TRAILER_BYTES, made, TRAILER_BYTES)
        return self._native.put(*_call(blocks, slots))

    def _judge(self, operation: Operation, codes: Sequence[int]) -> None:
        """Tell whether the store works, unless the deadline has already told."""
        if not operation.settled:
            self._answered(not all_failed(codes))

    def _slots(self, region: int) -> int:
        return self._trailers.address + region * self._slot_bytes

    def _places(self, batch: list[Block], thread: int) -> list[Block]:
        """The blocks, each in one piece of this thread's staging memory."""
        assert self._staging is not None
        address, places = self._staging.address + thread * self._options.staging_bytes, []
        for block in batch:
            places.append(Block.at(block.key, address, block.nbytes))
            address += block.nbytes
        return places


_PRESENCE = {1: Outcome.OK, 0: Outcome.ABSENT}
_PUT = {0: Outcome.OK, NO_SPACE: Outcome.NO_SPACE}


def _call(batch: list[Block], slots: int) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Arguments of a get or put: each block's pieces, and behind them its trailer's slot."""
    addresses = [[a for a, _ in block.parts] + [slots + at * TRAILER_BYTES] for at, block in enumerate(batch)]
    sizes = [[n for _, n in block.parts] + [TRAILER_BYTES] for block in batch]
    return [block.key for block in batch], addresses, sizes


def _copy(blocks: list[Block], places: list[Block], outcomes: list[Outcome]) -> None:
    for block, place, outcome in zip(blocks, places, outcomes, strict=True):
        if outcome.ok:
            source = place.parts[0][0]
            for address, nbytes in block.parts:
                ctypes.memmove(address, source, nbytes)
                source += nbytes
