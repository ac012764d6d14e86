"""What a prefill group and a DRAM tier keep of agents' prompts. Arithmetic only, standard library only.

Why data parallelism keeps more: an MLA cache is whole on every tensor-parallel rank, so 8 GPUs with attention split by
tensor parallelism (TEP8) hold the same tokens 8 times. With data-parallel attention (DEP8) each GPU holds tokens of its
own; but then the weights outside the experts are whole on each, and each needs buffers for the experts' tokens.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, fields

__all__ = ["Agents", "Group", "Kept", "PlanError", "Shares", "keep"]


class PlanError(ValueError):
    """A plan that cannot be made: the text names the value, why, what is allowed and what to do."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs that prefill together. All sizes in bytes.

    gpus: how many. budget: of one GPU, for weights, buffers and KV. experts: weights that are split over all GPUs in
    both shapes. shared: weights outside the experts. runtime: activations, graphs, communication of one GPU.
    exchange: further buffers of one GPU with data parallelism, for the tokens that experts get from all ranks.
    block_bytes, block_size: of KV and in tokens.
    """

    gpus: int
    budget: int
    experts: int
    shared: int
    runtime: int
    exchange: int
    block_bytes: int
    block_size: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("experts", "shared", "runtime", "exchange") else 1
            if type(value) is not int or value < least:
                raise PlanError(f"{field.name}={value!r}: it must be a whole number of at least {least}. Correct it.")
        for name, pool in (("tensor parallelism", self.tep_pool), ("data parallelism", self.dep_pool)):
            if pool < self.block_bytes:
                raise PlanError(
                    f"budget={self.budget}: with {name} a GPU has {pool} bytes left for KV, and a block takes "
                    f"{self.block_bytes}. Use more or larger GPUs, or smaller weights."
                )

    @property
    def tep_pool(self) -> int:
        """Bytes for KV on each GPU with TEP: all weights are split."""
        return self.budget - (self.experts + self.shared) // self.gpus - self.runtime

    @property
    def dep_pool(self) -> int:
        """Bytes for KV on each GPU with DEP: only the experts are split."""
        return self.budget - self.experts // self.gpus - self.shared - self.runtime - self.exchange

    @property
    def tep_tokens(self) -> int:
        """Tokens that the group keeps with TEP: those of one GPU, all others hold the same."""
        return self.tep_pool // self.block_bytes * self.block_size

    @property
    def dep_rank_tokens(self) -> int:
        """Tokens that one GPU keeps with DEP, its own."""
        return self.dep_pool // self.block_bytes * self.block_size

    @property
    def dep_tokens(self) -> int:
        """Tokens that the group keeps with DEP."""
        return self.gpus * self.dep_rank_tokens

    @property
    def ratio(self) -> float:
        """How many times more tokens DEP keeps."""
        return self.dep_tokens / self.tep_tokens


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The work: sessions that take turns, each turn's prompt the last one's and more.

    sessions: at the same time. prompt: tokens of a session's first prompt. append: tokens each further turn adds.
    turns: of each session. seed: of the order in which sessions come; every turn any session may be next.
    """

    sessions: int
    prompt: int
    append: int
    turns: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sessions", "prompt", "append", "turns"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 10_000_000:
                raise PlanError(f"{name}={value!r}: it must be a whole number from 1 to 10,000,000. Correct it.")
        if self.sessions * self.turns > 1_000_000:
            raise PlanError(
                f"sessions={self.sessions} x turns={self.turns}: it takes too long to play more than 1,000,000 turns. "
                "Give fewer; the shares settle after a few."
            )

    def order(self) -> list[tuple[int, int]]:
        """(session, tokens of its prompt) for each turn in the order in which they come."""
        left = [session for session in range(self.sessions) for _ in range(self.turns)]
        random.Random(self.seed).shuffle(left)
        played = [0] * self.sessions
        turns = []
        for session in left:
            turns.append((session, self.prompt + played[session] * self.append))
            played[session] += 1
        return turns


@dataclass(frozen=True)
class Shares:
    """Where the tokens of all prompts came from.

    prompts: tokens of all prompts. gpu, tier: found in a GPU's cache, and beyond that in the DRAM tier.
    repeats: tokens that some turn had before, the most that any cache could find.
    """

    prompts: int
    gpu: int
    tier: int
    repeats: int

    @property
    def recomputed(self) -> int:
        return self.prompts - self.gpu - self.tier

    @property
    def hit_rate(self) -> float:
        return (self.gpu + self.tier) / self.prompts

    @property
    def best(self) -> float:
        """The hit rate of a cache that keeps everything."""
        return self.repeats / self.prompts


class Kept:
    """A prefix cache of so many tokens: sessions by last use, each with its kept prefix.

    What must go is taken from the end of the session that was used least recently, as vLLM frees blocks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: OrderedDict[int, int] = OrderedDict()
        self._total = 0

    def found(self, session: int) -> int:
        """Tokens of this session's prefix that are kept."""
        return self._held.get(session, 0)

    def use(self, session: int, tokens: int) -> None:
        """A prompt of this session was computed and is the one used last."""
        tokens = min(tokens, self.capacity)
        self._total += tokens - self._held.pop(session, 0)
        self._held[session] = tokens
        while self._total > self.capacity:
            oldest = next(iter(self._held))
            excess = min(self._held[oldest], self._total - self.capacity)
            self._total -= excess
            self._held[oldest] -= excess
            if not self._held[oldest]:
                del self._held[oldest]


def keep(agents: Agents, rank_tokens: int, ranks: int, tier_tokens: int = 0) -> Shares:
    """Play the agents' turns against caches of `ranks` ranks with `rank_tokens` each, and a tier that they share.

    A session always comes to the same rank (rank = session mod ranks), as a router with affinity sends it. The tier
    holds what the ranks compute, by last use too. Raises `PlanError` for sizes below 0, or no rank.
    """
    if rank_tokens < 0 or tier_tokens < 0 or ranks < 1:
        raise PlanError(
            f"rank_tokens={rank_tokens} tier_tokens={tier_tokens} ranks={ranks}: sizes are 0 or more, and there is "
            "at least one rank. Correct them."
        )
    caches = [Kept(rank_tokens) for _ in range(ranks)]
    tier = Kept(tier_tokens)
    prompts = gpu = from_tier = repeats = 0
    before = [0] * agents.sessions
    for session, tokens in agents.order():
        cache = caches[session % ranks]
        here = min(cache.found(session), tokens)
        there = max(0, min(tier.found(session), tokens) - here)
        prompts, gpu, from_tier = prompts + tokens, gpu + here, from_tier + there
        repeats += before[session]
        before[session] = tokens
        cache.use(session, tokens)
        tier.use(session, tokens)
    return Shares(prompts, gpu, from_tier, repeats)
