"""Mooncake's processes: one master that knows where blocks are, one store a prefill node that holds them."""

from __future__ import annotations

from glm53.commands.connectors import as_json
from glm53.deployment import Deployment
from glm53.deployment.parts import Tier

__all__ = ["client_config", "master_arguments", "node_arguments", "store_arguments"]


def master_arguments(deployment: Deployment) -> list[str]:
    """Arguments of ``mooncake_master``. Its leases are in milliseconds."""
    ports, lease_ms = deployment.ports, _tier(deployment).lease_seconds * 1000
    return [
        f"--rpc_port={ports.tier_rpc}",
        f"--metrics_port={ports.tier_metrics}",
        f"--default_kv_lease_ttl={lease_ms}",
    ]


def store_arguments(deployment: Deployment, host: str, master: str) -> list[str]:
    """Arguments of ``mooncake_client``, which owns the memory of one node. host, master: addresses."""
    tier = _tier(deployment)
    return [
        f"--host={host}",
        f"--port={deployment.ports.tier_store}",
        f"--global_segment_size={int(tier.memory)}",
        f"--local_buffer_size={int(tier.buffer)}",
        f"--master_server_address={master}:{deployment.ports.tier_rpc}",
        "--metadata_server=P2PHANDSHAKE",
        f"--protocol={tier.protocol}",
    ]


def client_config(deployment: Deployment, master: str) -> str:
    """The file at ``MOONCAKE_CONFIG_PATH``: engines own no memory of the tier, the stores do."""
    tier = _tier(deployment)
    return as_json(
        {
            "mode": "standalone-store",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": f"{master}:{deployment.ports.tier_rpc}",
            "protocol": tier.protocol,
            "device_name": "",
            "global_segment_size": 0,
            "local_buffer_size": int(tier.buffer),
        }
    )


def node_arguments(deployment: Deployment, host: str, ports: tuple[int, int, int], folder: str) -> list[str]:
    """Arguments of ``mooncake-tier``, which runs master and store of one machine. ports: calls, metrics, store."""
    tier, (calls, metrics, store) = _tier(deployment), ports
    return [
        "serve",
        *("--host", host, "--run-dir", folder),
        *("--rpc-port", str(calls), "--metrics-port", str(metrics), "--pool-port", str(store)),
        *("--pool", f"{int(tier.memory) >> 20}MiB", "--lease", str(tier.lease_seconds)),
        *("--protocol", tier.protocol, "--threads", "2"),
    ]


def _tier(deployment: Deployment) -> Tier:
    if deployment.tier is None:
        raise ValueError(f"{deployment.name} has no DRAM tier; set tier, or do not render one")
    return deployment.tier
