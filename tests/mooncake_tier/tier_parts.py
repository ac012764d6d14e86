"""Parts of the tier that need vLLM but no engine, for the child process of `tier_engine`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest import mock


def refusal(case: str) -> str:
    """What is said of a configuration that cannot be."""
    from mooncake_tier.errors import TierRefused

    try:
        _CASES[case]()
    except TierRefused as error:
        return str(error)
    return ""


def _tier(under: bool = True, events: bool = False, section: dict[str, Any] | None = None, **entry: Any) -> None:
    from mooncake_tier.tier import UNDER_CONNECTOR, MooncakeTier

    spec = SimpleNamespace(
        extra_config={"mooncake_tier": section or {"master": "127.0.0.1:1"}},
        kv_events_config=SimpleNamespace(enable_kv_cache_events=events, self_describing_kv_events=events),
    )
    token = UNDER_CONNECTOR.set(under)
    try:
        MooncakeTier(spec, memoryview(bytearray(8192)).cast("B", (2, 4096)), "MooncakeTier", None, **entry)
    finally:
        UNDER_CONNECTOR.reset(token)


def _no_tier() -> None:
    from mooncake_tier.offload import _only_tier

    _only_tier(SimpleNamespace(secondary_tiers=[]))


def _workers(*told: dict[str, Any]) -> None:
    from mooncake_tier.offloading.told import agreed

    agreed([json.dumps(one) for one in told], 2)


_CASES = {
    "stock connector": lambda: _tier(under=False),
    "events without metrics": lambda: _tier(events=True),
    "setting in the wrong place": lambda: _tier(master="127.0.0.1:1"),
    "misspelt setting": lambda: _tier(section={"master": "127.0.0.1:1", "lease": 3}),
    "no tier": _no_tier,
    "workers differ": lambda: _workers({"a": 1, "b": 2}, {"a": 1, "b": 3}),
    "a worker is silent": lambda: _workers({"a": 1}),
}


def told_by_two() -> tuple[dict[str, Any], list[int]]:
    """The fields, and the finished jobs, of two workers that agree, as the scheduler gets them."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

    from mooncake_tier.offloading.told import TellingMetadata, agreed

    one, two = (TellingMetadata.of(OffloadingWorkerMetadata({5: 1}), {"a": 1}) for _ in range(2))
    both: Any = one.aggregate(two)
    return agreed(both.told, 2), [both.completed_jobs[5]]


def shown_beside_others() -> dict[str, float]:
    """The tier's figures after a MultiConnector sent them to another process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

    from mooncake_tier.offload import PrefetchOffloadingConnector

    stats = OffloadingConnectorStats()
    stats.increase_counter("vllm:mooncake_tier_evicted", 3)
    found: Any = MultiConnector.build_kv_connector_stats({PrefetchOffloadingConnector.__name__: stats.data})
    [(_, one)] = found.data.items()
    return dict(one.reduce())


def described_after_failures() -> list[str]:
    """Of three chunks described to the router, one came, one did not, and one lies in the store as well."""
    from vllm.v1.kv_offload.base import LookupResult, Medium

    from mooncake_tier.offloading import waiting

    host = (Medium.CPU, None)
    described: dict[str, Any] = {
        "came": SimpleNamespace(active_residencies={host}),
        "did not": SimpleNamespace(active_residencies={host}),
        "in the store": SimpleNamespace(active_residencies={host, (Medium.CPU, "MooncakeTier")}),
    }
    results = {"came": LookupResult.HIT}
    scheduler = SimpleNamespace(
        _events_tracker=SimpleNamespace(_pending_event_metadata=described),
        manager=SimpleNamespace(
            primary_tier=SimpleNamespace(lookup=lambda key, _: results.get(key, LookupResult.MISS))
        ),
    )
    keys: Any = [*described, "never described"]
    with mock.patch.object(waiting, "series", return_value="0.32"):
        waiting.WaitingRequests(scheduler, None).not_loaded(keys)  # type: ignore[arg-type]
    return list(described)


def copied(seed: int) -> list[tuple[bool, bool]]:
    """For each of two groups: whether a store put each block where it belongs, and a load brought it back.

    Chunks of 3 blocks; the first group begins inside its first chunk and ends inside its last. Expected by one copy
    after another.
    """
    import torch
    from vllm.v1.kv_offload.base import (
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        GPULoadStoreSpec,
    )
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

    from mooncake_tier.cpu_platform import CpuWorker

    pages, per_chunk = (16, 24, 8), 3
    made = torch.Generator().manual_seed(seed)
    caches = [torch.randint(-128, 128, (20, page), dtype=torch.int8, generator=made) for page in pages]
    host = torch.zeros((10, per_chunk * sum(pages)), dtype=torch.int8)
    ends = [sum(pages[: at + 1]) * per_chunk for at in range(3)]
    views = iter([host[:, begin:end] for begin, end in zip([0, *ends], ends, strict=False)])
    region: Any = SimpleNamespace(create_next_worker_view=lambda nbytes: next(views), cleanup=lambda: None)
    refs = [[CanonicalKVCacheRef(0, 16), CanonicalKVCacheRef(1, 24)], [CanonicalKVCacheRef(2, 8)]]
    tensors = [CanonicalKVCacheTensor(cache, page) for cache, page in zip(caches, pages, strict=True)]
    worker = CpuWorker(CanonicalKVCaches(tensors, refs), per_chunk, region)
    groups = [([7, 3, 11, 2, 9], 4, [6, 1]), ([5, 8], 3, [4])]  # blocks, index of the first, chunks
    blocks = GPULoadStoreSpec(groups[0][0] + groups[1][0], [5, 2], [4, 3])
    chunks = CPULoadStoreSpec(groups[0][2] + groups[1][2])

    expected, before = torch.zeros_like(host), [cache.clone() for cache in caches]
    for group, of_group in enumerate(([0, 1], [2])):
        ids, first, numbers = groups[group]
        for at, block in enumerate(ids):
            chunk, inside = numbers[(first % per_chunk + at) // per_chunk], (first + at) % per_chunk
            for tensor in of_group:
                begin = per_chunk * sum(pages[:tensor]) + inside * pages[tensor]
                expected[chunk, begin : begin + pages[tensor]] = before[tensor][block]
    assert worker.submit_store(1, blocks, chunks)
    stored = bool(torch.equal(host, expected))
    for group, of_group in enumerate(([0, 1], [2])):
        for tensor in of_group:
            caches[tensor][groups[group][0]] = 0
    assert worker.submit_load(2, chunks, blocks)
    assert [one.job_id for one in worker.get_finished()] == [1, 2]
    assert worker.get_finished() == []
    return [
        (stored, all(bool(torch.equal(caches[tensor], before[tensor])) for tensor in of_group))
        for of_group in ([0, 1], [2])
    ]
