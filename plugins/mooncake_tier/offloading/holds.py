"""Which keys are kept from eviction, and why: a key is held as long as one reason for it is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

__all__ = ["Holds"]

_LONG_S = 7 * 86_400.0


class Holds:
    """hold, let_go: as `mooncake_tier.client.tier_client.TierClient` has them."""

    def __init__(self, hold: Callable[[Sequence[str], float], None], let_go: Callable[[Sequence[str]], None]) -> None:
        self._hold, self._let_go = hold, let_go
        self._reasons: dict[Hashable, set[str]] = {}
        self._count: Counter[str] = Counter()

    def add(self, reason: Hashable, names: Iterable[str]) -> None:
        """Keep these for this reason, besides what it keeps already."""
        kept = self._reasons.setdefault(reason, set())
        more = [name for name in dict.fromkeys(names) if name not in kept]
        kept.update(more)
        self._count.update(more)
        if begun := [name for name in more if self._count[name] == 1]:
            self._hold(begun, _LONG_S)

    def drop(self, reason: Hashable, names: Iterable[str] | None = None) -> None:
        """The reason is gone, for all of its keys or for these."""
        kept = self._reasons.get(reason, set())
        gone = kept.intersection(names) if names is not None else set(kept)
        kept -= gone
        if not kept:
            self._reasons.pop(reason, None)
        self._count.subtract(gone)
        if ended := [name for name in gone if self._count[name] == 0]:
            self._let_go(ended)
            for name in ended:
                del self._count[name]

    def clear(self) -> None:
        """No reason is left."""
        for reason in list(self._reasons):
            self.drop(reason)

    def __contains__(self, name: object) -> bool:
        return name in self._count

    def __len__(self) -> int:
        return len(self._count)
