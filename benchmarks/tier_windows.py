"""What a request that decodes notices of others that arrive beside it; runs in the process of `tier_rig`."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

from tier_rig import prompt, rig

__all__ = ["DECODING", "Shape", "Window", "begin", "end", "lose_before_load", "recovered", "store", "truths"]

#: The prompt that decodes: shorter than a block, so that no cache has it.
DECODING = prompt(40, 1)
LENGTH, ANSWER, MOST = 140, 8, 1500


@dataclass(frozen=True)
class Shape:
    """rounds: how often each fault happens. arrivals: requests of a window. every: tokens of the running request
    between two of them."""

    rounds: int = 3
    arrivals: int = 4
    every: int = 20

    def prompts(self, window: int) -> list[list[int]]:
        """Of one kind of window."""
        return [prompt(LENGTH, 1000 * (window + 1) + one) for one in range(self.arrivals)]


@dataclass
class Window:
    """gaps: seconds between two tokens of the running request, by `tier_rig.own_clock`. wall: the same by the wall's
    clock. firsts: seconds until the first token of those beside it."""

    gaps: list[float]
    wall: list[float]
    firsts: list[float]
    cached: list[int]
    answers: list[list[int]]
    decoded: list[int]


def truths(prompts: list[list[int]]) -> list[list[int]]:
    """What this engine answers; at last that which decodes."""
    answers = [rig().ask("truth", ids, ANSWER).tokens for ids in prompts]
    return [*answers, rig().ask("truth", DECODING, MOST // 2).tokens]


def store(prompts: list[list[int]]) -> None:
    """Compute prompts, so that they are in the store and nowhere else."""
    for ids in prompts:
        rig().ask("stored", ids, 1)
    rig().forget()


def begin() -> None:
    """Let a request decode."""
    one = rig().add("decoding", DECODING, MOST)
    rig().until(lambda: len(one.tokens) >= 10)


def end(prompts: list[list[int]], every: int) -> Window:
    """Let others arrive, wait for all of them, and end the one that decodes."""
    engine = rig()
    running, others = engine.requests["decoding"], []
    first = len(running.times)
    for number, ids in enumerate(prompts):
        others.append(engine.add(f"beside {number}", ids, ANSWER))
        goal = len(running.tokens) + every
        engine.until(lambda goal=goal: len(running.tokens) >= goal)  # type: ignore[misc]
    engine.until(lambda: all(one.finished for one in others))
    gaps, wall = (
        [after - before for before, after in itertools.pairwise(clock[first:])]
        for clock in (running.own, running.times)
    )
    engine.abort("decoding")
    return Window(
        gaps,
        wall,
        [one.first for one in others],
        [one.cached for one in others],
        [one.tokens for one in others],
        running.tokens,
    )


_seeds = itertools.count(1_000_000)


def recovered(since: float, within_s: float = 120.0) -> float:
    """Seconds since a time of the monotonic clock until something new that was stored is found in the store."""
    for seed in _seeds:
        ids = prompt(LENGTH, seed)
        rig().ask("again", ids, 1)
        rig().forget()
        if rig().ask("again", ids, 1).cached:
            rig().forget()
            return time.monotonic() - since
        if time.monotonic() > since + within_s:
            break
    raise TimeoutError(f"the store was not used again within {within_s} s; {rig().figures()}")


_lost: list[Any] = []


def lose_before_load(lose: bool) -> None:
    """Whether objects leave the store between their lookup and their load, as when a lease is over."""
    native = rig().client._native
    if not lose:
        native.get = _lost.pop()
        return
    get = native.get
    _lost.append(get)

    def late(keys: list[str], *where: Any) -> list[int]:
        for key in keys:
            native.remove(key)
        return list(get(keys, *where))

    native.get = late


def namespace() -> str:
    """The engine's namespace."""
    rig().until(lambda: rig().client is not None)
    return str(rig().client.namespace)


def figures() -> dict[str, float]:
    """The tier's figures."""
    return rig().figures()
