"""Requests, steps and a block pool in the shape that vLLM's scheduler has them. Fakes: test_store_engine_stock has the
real ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

BLOCK = 4  # tokens


def block_hash(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def request(name: str, blocks: int, *, tokens: int | None = None, first: int = 0, **changed: Any) -> Any:
    """A request whose full blocks have the hashes `first`, `first` + 1 and so on; by default one token more."""
    count = blocks * BLOCK + 1 if tokens is None else tokens
    fields: dict[str, Any] = {
        "request_id": name,
        "block_hashes": [block_hash(first + at) for at in range(blocks)],
        "num_tokens": count,
        "num_prompt_tokens": count,
        "num_computed_tokens": 0,
        "all_token_ids": list(range(count)),
        "kv_transfer_params": None,
        "lora_request": None,
    }
    return SimpleNamespace(**fields | changed)


def step(scheduled: dict[str, int], tables: dict[str, list[int]] | None = None) -> Any:
    """A step that computes so many tokens of each request. tables: block ids of each."""
    state = SimpleNamespace(get_block_ids=lambda name: ((tables or {})[name],))
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        kv_connector_block_state=state,
    )


@dataclass
class Pool:
    """references: of each block. freed: ids in the order in which they were given back."""

    references: list[int] = field(default_factory=lambda: [1] * 64)
    freed: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        return list(range(len(self.references)))

    def touch(self, blocks: list[int]) -> None:
        for one in blocks:
            self.references[one] += 1

    def free_blocks(self, blocks: Any) -> None:
        for one in blocks:
            self.references[one] -= 1
            self.freed.append(one)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
