"""What a DRAM pool that all ranks share would keep: the arithmetic of `glm53 plan tier`, where replay cannot run it."""

from __future__ import annotations

from dataclasses import dataclass

from glm53.deployment import Deployment
from glm53.plan.group import group_kv
from glm53.simulate.scenario import Scenario
from glm53.simulate.trace import Agents
from mooncake_tier import plan

__all__ = ["Pool", "pool"]


@dataclass(frozen=True)
class Pool:
    """Shares of prompt tokens that are found: without the pool, with it, and in a cache that keeps everything."""

    without: float
    shared: float
    best: float


def pool(deployment: Deployment, scenario: Scenario, agents: Agents) -> Pool:
    """One task of each agent, in a random order; every agent stays on one rank, where what came last is kept."""
    kv = group_kv(deployment, scenario.prefill)
    ranks = scenario.prefill_groups * kv.ranks
    work = plan.Agents(
        sessions=agents.sessions, prompt=agents.prompt, append=agents.append, turns=agents.turns, seed=agents.seed
    )
    tokens = scenario.tier // kv.block_bytes * kv.block_size
    without, shared = plan.keep(work, kv.rank_tokens, ranks), plan.keep(work, kv.rank_tokens, ranks, tokens)
    return Pool(without.hit_rate, shared.hit_rate, shared.best)
