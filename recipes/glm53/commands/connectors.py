"""What moves KV: NIXL from prefill to decode, and Mooncake's DRAM tier behind prefill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from glm53.deployment import Deployment, RoleName

__all__ = ["Master", "as_json", "kv_transfer", "load_failure_policy"]


@dataclass(frozen=True)
class Master:
    """Where the tier's master is: ``host:port`` of its calls and of its metrics. here: a worker's address for it."""

    calls: str
    metrics: str
    here: str

    @classmethod
    def at(cls, deployment: Deployment, host: str, here: str) -> Master | None:
        """A cluster's, on the ports of the deployment; None without a tier."""
        ports = deployment.ports
        return cls(f"{host}:{ports.tier_rpc}", f"{host}:{ports.tier_metrics}", here) if deployment.tier else None


def kv_transfer(
    deployment: Deployment, role: RoleName, transfer_log: str | None = None, master: Master | None = None
) -> dict[str, Any] | None:
    """vLLM's ``--kv-transfer-config`` of a role; None for a role that moves no KV.

    transfer_log: file for one line per transfer. master: the tier's, without which no block is stored.
    """
    moving = [] if role == "aggregated" else [_nixl(deployment, role, transfer_log)]
    way = _store if deployment.machine.gpus else _offload
    stored = [way(deployment, master)] if master and role != "decode" else []
    policy = {"kv_load_failure_policy": load_failure_policy(deployment, role)}
    if not moving and not stored:
        return None
    if len(moving + stored) == 1:
        return (moving + stored)[0] | policy
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        **policy,
        "kv_connector_extra_config": {"connectors": moving + stored},
    }


def load_failure_policy(deployment: Deployment, role: RoleName) -> str:
    """What a worker does with a request whose KV cannot be loaded.

    Decode ends it. Prefill loads from the tier only, and what the tier lost is computed as if it had never been there.
    """
    if role == "decode":
        return deployment.kv_transfer.on_failure
    return "recompute" if deployment.tier else "fail"


def _nixl(deployment: Deployment, role: RoleName, transfer_log: str | None) -> dict[str, Any]:
    transfer = deployment.kv_transfer
    blhnc: dict[str, Any] = {
        "layout": transfer.layout,
        "block_allocation": transfer.block_allocation,
        "eviction_window": transfer.eviction_window,
    }
    if transfer.nixl_progress_delay_us is not None:
        blhnc["progress_delay_us"] = transfer.nixl_progress_delay_us
    if transfer_log is not None:
        blhnc["transfer_log"] = transfer_log
    return {
        # The stock name, on which vLLM and Dynamo dispatch.
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "vllm_blhnc.connector",
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_connector_extra_config": {"kv_lease_duration": transfer.lease_seconds, "blhnc": blhnc},
    }


def _store(deployment: Deployment, master: Master) -> dict[str, Any]:
    """The plugin's connector between a GPU's blocks and the tier."""
    return {
        "kv_connector": "TierStoreConnector",
        "kv_connector_module_path": "mooncake_tier.store_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"mooncake_tier": _section(deployment, master)},
    }


def _offload(deployment: Deployment, master: Master) -> dict[str, Any]:
    """vLLM's offload to host memory, with the plugin's tier behind it: the way that works without a GPU."""
    assert deployment.tier is not None
    return {
        "kv_connector": "PrefetchOffloadingConnector",
        "kv_connector_module_path": "mooncake_tier.offload",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "mooncake_tier.cpu_platform",
            "cpu_bytes_to_use": int(deployment.tier.buffer),
            "block_size": deployment.tier.chunk_tokens,
            "self_describing_kv_events": deployment.router == "kv",
            "secondary_tiers": [{"type": "MooncakeTier", "module_path": "mooncake_tier.tier"}],
            "mooncake_tier": _section(deployment, master),
        },
    }


def _section(deployment: Deployment, master: Master) -> dict[str, Any]:
    """The plugin's own settings, which both of its ways into vLLM have in common."""
    assert deployment.tier is not None
    tier, model = deployment.tier, deployment.model
    section = {
        "master": master.calls,
        "metrics": master.metrics,
        "host": master.here,
        "protocol": tier.protocol,
        # A pool of several nodes is as near to every worker, so the router must not take it for one worker's own.
        "medium": "CPU" if deployment.tier_nodes == 1 else "EXTERNAL",
        "lease_s": tier.lease_seconds,
        "poll_s": tier.poll_seconds,
        "model": model.repository or model.served_name,
    }
    if model.revision:
        section["revision"] = model.revision
    if model.adapters:
        section["adapter"] = ",".join(sorted(f"{one.name}={one.uri}" for one in model.adapters))
    return section


def as_json(value: Any) -> str:
    """JSON on one line with sorted keys, so that equal values are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
