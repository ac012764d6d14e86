"""What the store connector's scheduler tells its workers in each step, and what they tell it. Loads no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mooncake_tier.errors import KeyRefused

__all__ = ["LoadOrder", "StoreOrder", "StoreOrders", "StoreReport"]

Blocks = list[tuple[bytes, int]]
"""vLLM's hash and the id of each block."""


@dataclass
class LoadOrder:
    """Blocks of a request that are to be read."""

    request_id: str
    blocks: Blocks


@dataclass
class StoreOrder:
    """Blocks that are to be written; they are pinned until every worker has reported the number."""

    number: int
    blocks: Blocks


@dataclass
class StoreOrders:
    """One step's orders.

    idle: nothing is computed in it. asking: a request waits for its lookup. named: the scheduler knows the namespace.
    """

    loads: list[LoadOrder] = field(default_factory=list)
    stores: list[StoreOrder] = field(default_factory=list)
    idle: bool = False
    asking: bool = False
    named: bool = False


@dataclass
class StoreReport:
    """What workers did. done: order -> workers that are done with it. unstored, unloaded: hashes of blocks.

    namespace: of the deployment, from a worker to a scheduler that does not know it.
    """

    namespace: str
    done: dict[int, int] = field(default_factory=dict)
    unstored: set[bytes] = field(default_factory=set)
    unloaded: set[bytes] = field(default_factory=set)

    def aggregate(self, other: Any) -> StoreReport:
        """Both together; raises `KeyRefused` for workers of different namespaces."""
        if other.namespace != self.namespace:
            raise KeyRefused(
                f"workers of one engine with the namespaces {self.namespace} and {other.namespace}",
                "they would not find each other's blocks",
                "one model, and the same packages and settings on each machine",
                "Compare their reports (report_dir) with mooncake-tier doctor --report",
            )
        for number, count in other.done.items():
            self.done[number] = self.done.get(number, 0) + count
        self.unstored |= other.unstored
        self.unloaded |= other.unloaded
        return self
