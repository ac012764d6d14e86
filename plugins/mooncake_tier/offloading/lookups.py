"""What a scheduler knows of keys in the store: asked once for all requests that want them, answered without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mooncake_tier.client.operation import Operation
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.offloading.holds import Holds

__all__ = ["Lookups"]


@dataclass
class _Verdict:
    found: bool | None = None
    at: float = 0.0
    requests: set[str] = field(default_factory=set)


class Lookups:
    """Verdicts by key, for the requests that asked. Used from one thread.

    A key that was found is held, so that it is there when it is loaded. An absent one may be stored by somebody else
    while the request waits, so it is asked for again after recheck_s seconds, and meanwhile counts as absent.
    """

    def __init__(
        self, client: TierClient, holds: Holds, recheck_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._holds, self._recheck, self._clock = client, holds, recheck_s, clock
        self._verdicts: dict[str, _Verdict] = {}
        self._of_request: dict[str, set[str]] = {}
        self._asked: list[str] = []
        self._under_way: list[Operation] = []

    def __len__(self) -> int:
        return len(self._verdicts)

    @property
    def waiting(self) -> bool:
        """Whether an answer is due."""
        return bool(self._asked or self._under_way)

    def ask(self, name: str, request: str) -> bool | None:
        """Whether it is in the store, None while that is not known; `submit` sends the question."""
        verdict = self._verdicts.get(name)
        if verdict is None:
            verdict = self._verdicts[name] = _Verdict()
            self._asked.append(name)
        elif verdict.found is False and self._clock() >= verdict.at + self._recheck:
            verdict.at = self._clock()
            self._asked.append(name)
        if request not in verdict.requests:
            verdict.requests.add(request)
            self._of_request.setdefault(request, set()).add(name)
            if verdict.found:
                self._holds.add(request, [name])
        return verdict.found

    def submit(self) -> None:
        """Send what was asked since the last time, as one question."""
        asked, self._asked = [name for name in self._asked if name in self._verdicts], []
        if asked:
            self._under_way.append(self._client.submit_lookup(asked))

    def settle(self) -> bool:
        """Take over the answers that have come; one that is late is a no. Returns whether there were any."""
        asked, left = len(self._under_way), []
        for operation in self._under_way:
            outcomes = operation.poll()
            if outcomes is None:
                left.append(operation)
                continue
            for name, outcome in zip(operation.keys, outcomes, strict=True):
                self._settle(name, outcome.ok)
        self._under_way = left
        return len(left) < asked

    def stored(self, names: Iterable[str]) -> None:
        """These are there now."""
        for name in names:
            self._settle(name, True)

    def failed(self, names: Iterable[str]) -> None:
        """Their load failed: they count as absent for everybody who waits for them."""
        for name in names:
            self._settle(name, False)

    def forget(self, request: str) -> None:
        """This request wants nothing any more."""
        self._holds.drop(request)
        for name in self._of_request.pop(request, ()):
            verdict = self._verdicts[name]
            verdict.requests.discard(request)
            if not verdict.requests:
                del self._verdicts[name]

    def clear(self) -> None:
        """Forget every answer; the requests ask anew."""
        for request in list(self._of_request):
            self.forget(request)
        self._asked.clear()
        self._under_way.clear()

    def _settle(self, name: str, found: bool) -> None:
        if verdict := self._verdicts.get(name):
            verdict.found, verdict.at = found, self._clock()
            for request in verdict.requests:
                if found:
                    self._holds.add(request, [name])
                else:
                    self._holds.drop(request, [name])
