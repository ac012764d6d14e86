"""What a worker tells the scheduler once: the fields of its namespace, beside the jobs that it has finished."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

from mooncake_tier.errors import KeyRefused

__all__ = ["TellingMetadata", "agreed"]


@dataclass
class TellingMetadata(OffloadingWorkerMetadata):
    """told: each worker's fields, as JSON."""

    told: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, stock: OffloadingWorkerMetadata | None, fields: Mapping[str, Any]) -> TellingMetadata:
        """What stock's worker says of this step, and the fields."""
        said = stock or OffloadingWorkerMetadata()
        return cls(said.completed_jobs, said.transfer_stats, [json.dumps(fields, sort_keys=True)])

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """All that two workers say."""
        merged = super().aggregate(other)
        assert isinstance(merged, OffloadingWorkerMetadata)
        return TellingMetadata(merged.completed_jobs, merged.transfer_stats, [*self.told, *getattr(other, "told", ())])


def agreed(told: Sequence[str], workers: int) -> dict[str, Any]:
    """The fields that all workers told; raises `KeyRefused` if they differ, or if one did not tell."""
    fields: list[dict[str, Any]] = [json.loads(one) for one in told]
    differ = sorted(name for name in fields[0] if any(one[name] != fields[0][name] for one in fields))
    if differ or len(fields) != workers:
        raise KeyRefused(
            f"{len(fields)} of {workers} workers told their namespace, which differs in {differ or 'nothing'}",
            "one chunk holds blocks of all workers, and would be read by other ones",
            "the same checkpoint, caches and settings in every worker",
            "Correct what differs",
        )
    return fields[0]
