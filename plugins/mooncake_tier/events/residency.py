"""One word per block for the router: a block that lies in two places of a medium is stored once, and removed with the
last of them.

vLLM's offload tells of host memory and of every secondary tier by itself. Dynamo keeps one entry for a block, a worker
and a medium, so the first removal would end what the other place still holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["Residency"]

Place = tuple[str | None, Any, int | None]
"""Medium, block hash, cache group."""


class Residency:
    """Counts where each block lies. owner: tier whose events name `medium` instead of vLLM's name for it.

    stored, removed, cleared: vLLM's event classes; their other fields pass unchanged.
    """

    def __init__(self, stored: type, removed: type, cleared: type, owner: str, medium: str) -> None:
        self._stored, self._removed, self._cleared = stored, removed, cleared
        self._owner, self._medium = owner, medium
        self._places: Counter[Place] = Counter()
        self._withdrawn: list[Any] = []

    def __len__(self) -> int:
        return len(self._places)

    def merged(self, events: Iterable[Any]) -> Iterator[Any]:
        """The events that change what the router must know, with medium and owner as it understands them."""
        withdrawn, self._withdrawn = self._withdrawn, []
        yield from withdrawn
        for event in events:
            if isinstance(event, self._cleared):
                self._places.clear()
                yield event
            elif isinstance(event, self._stored):
                yield from self._store(event)
            elif isinstance(event, self._removed):
                yield from self._remove(event)
            else:
                yield event

    def forget(self) -> None:
        """The router forgot everything, and is told again of what is stored or read again."""
        self._places.clear()

    def withdraw(self) -> None:
        """Everything is gone, and nobody tells: the next `merged` begins with the removals."""
        by_place: dict[tuple[str | None, int | None], list[Any]] = {}
        for medium, block, group in self._places:
            by_place.setdefault((medium, group), []).append(block)
        self._withdrawn = [
            self._removed(block_hashes=blocks, medium=medium, group_idx=group)
            for (medium, group), blocks in by_place.items()
        ]
        self._places.clear()

    def _store(self, event: Any) -> Iterator[Any]:
        if not event.token_ids:  # vLLM's placeholder for a chunk that it cannot describe; no router can use it
            return
        places = self._of(event, event.block_hashes)
        new = any(not self._places[place] for place in places)
        self._places.update(places)
        if new:
            yield self._named(event, places[0][0])

    def _remove(self, event: Any) -> Iterator[Any]:
        gone = []
        for place in self._of(event, event.block_hashes):
            if self._places[place] > 1:
                self._places[place] -= 1
            elif self._places.pop(place, 0):
                gone.append(place[1])
        if gone:
            event.block_hashes = gone
            yield self._named(event, self._of(event, gone)[0][0])

    def _of(self, event: Any, blocks: Sequence[Any]) -> list[Place]:
        medium = self._medium if event.ownership == self._owner else event.medium
        return [(medium, block, event.group_idx) for block in blocks]

    def _named(self, event: Any, medium: str | None) -> Any:
        event.medium, event.ownership, event.locality = medium, None, None
        return event
