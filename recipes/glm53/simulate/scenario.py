"""What is replayed: the recipe's groups as Dynamo's mocker takes them, and the same with one thing changed.

A prefill group is one mocker worker with as many data-parallel ranks as the recipe gives it, each with its own prefix
cache, in step with the others; a decode group is another. Blocks, chunks and sequences are the recipe's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glm53.deployment import Deployment
from glm53.deployment.roles import Role
from glm53.plan.group import GroupKv, group_kv, tensor_parallel
from glm53.simulate.timing import Speeds, write_profile
from vllm_blhnc.plan import PlanError

__all__ = ["LINK_GB", "Router", "Scenario", "baseline", "job"]

Router = Literal["kv_router", "round_robin"]

#: GB/s in each direction between a GPU and the tier: one network device of 400 Gb/s a GPU, through which Mooncake's
#: store is reached.
LINK_GB = 50.0


@dataclass(frozen=True)
class Scenario:
    """One run.

    prefill, decode: the roles. tier: bytes of DRAM behind all prefill groups; 0 is none. shared: whether all ranks find
    what one of them stored, or each has a part of its own.
    """

    prefill: Role
    decode: Role
    prefill_groups: int
    decode_groups: int
    router: Router
    chunk: int
    tier: int
    shared: bool = False

    def with_(self, **changes: Any) -> Scenario:
        """The same with these fields changed."""
        return replace(self, **changes)

    @property
    def as_tensor_parallel(self) -> Scenario:
        """The same GPUs of each prefill group with one cache that all of them hold."""
        return self.with_(prefill=tensor_parallel(self.prefill))

    @property
    def gpus(self) -> int:
        return self.prefill_groups * self.prefill.gpus + self.decode_groups * self.decode.gpus

    @property
    def key(self) -> str:
        """A name: equal for equal scenarios of one recipe, and good for files."""
        shape = f"{'dep' if self.prefill.data_parallel > 1 else 'tep'}{self.prefill.gpus}"
        tier = ("pool" if self.shared else "tier") if self.tier else "no-tier"
        return f"{shape}-{self.prefill_groups}p{self.decode_groups}d-{self.chunk}-{self.router}-{tier}"


def baseline(deployment: Deployment) -> Scenario:
    """The recipe itself. Raises `PlanError` for one whose prefill and decode are not apart."""
    if not deployment.disaggregated:
        raise PlanError(
            f"workers.prefill={deployment.workers.prefill}: the comparisons are of prefill and decode groups, and this "
            "recipe has none. Give one that has, such as recipes/glm53-gb200-nvl72.yaml."
        )
    prefill, groups = deployment.roles.prefill, deployment.workers.prefill
    return Scenario(
        prefill=prefill,
        decode=deployment.roles.decode,
        prefill_groups=groups,
        decode_groups=deployment.workers.decode,
        router="kv_router" if deployment.router == "kv" else "round_robin",
        chunk=prefill.max_batched_tokens or deployment.engine.max_batched_tokens,
        tier=deployment.tier.memory * deployment.nodes("prefill") * groups if deployment.tier else 0,
    )


def job(deployment: Deployment, scenario: Scenario, speeds: Speeds, folder: Path) -> dict[str, Any]:
    """What `worker.main` takes, without the trace. Writes the timing profiles into `folder`.

    speeds.prefill is of a group: a data-parallel rank has its share of it, a tensor-parallel group all. Raises
    `PlanError` where a group has no room for KV.
    """
    kv = group_kv(deployment, scenario.prefill)
    engine = _engine(deployment, scenario.prefill, "prefill", kv, scenario.chunk)
    engine["timing_model"] = _profile(folder / f"{scenario.key}.prefill.npz", speeds.prefill / kv.ranks, 1.0)
    if scenario.tier:
        parts = 1 if scenario.shared else scenario.prefill_groups * kv.ranks
        engine["kv_cache_bytes_per_token"] = kv.block_bytes // kv.block_size
        engine["native_host_offload"] = {
            "scope": "cluster_shared" if scenario.shared else "dp_rank_local",
            "num_host_blocks": scenario.tier // kv.block_bytes // parts,
            "d2h_bandwidth_gbps": LINK_GB,
            "h2d_bandwidth_gbps": LINK_GB,
        }
        if scenario.shared:
            engine["native_host_offload"]["kv_layout_id"] = deployment.fingerprint
    decode_kv = group_kv(deployment, scenario.decode)
    chunk = scenario.decode.max_batched_tokens or deployment.engine.max_batched_tokens
    decode = _engine(deployment, scenario.decode, "decode", decode_kv, chunk)
    decode["timing_model"] = _profile(folder / f"{scenario.key}.decode.npz", speeds.prefill, speeds.decode_ms)
    return {
        "prefill": {"engine": engine, "dp_size": kv.ranks},
        "decode": {"engine": decode, "dp_size": decode_kv.ranks},
        "prefill_groups": scenario.prefill_groups,
        "decode_groups": scenario.decode_groups,
        "router": scenario.router,
    }


def _engine(deployment: Deployment, role: Role, name: str, kv: GroupKv, chunk: int) -> dict[str, Any]:
    return {
        "backend": "vllm",
        "worker_type": name,
        "block_size": kv.block_size,
        "num_gpu_blocks": kv.blocks,
        "max_model_len": deployment.engine.max_model_len,
        "max_num_seqs": role.max_sequences or deployment.engine.max_sequences,
        "max_num_batched_tokens": chunk,
    }


def _profile(path: Path, tokens_per_second: float, decode_ms: float) -> dict[str, Any]:
    write_profile(path, tokens_per_second, decode_ms)
    return {"type": "external", "provider": "dynamo_profile", "config": {"path": str(path)}}
