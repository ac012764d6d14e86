"""Mooncake's processes: one master that knows where blocks are, one store a prefill node that holds them."""

from __future__ import annotations

from glm53.deployment import Deployment
from glm53.deployment.parts import Tier

__all__ = ["MODULE", "master_arguments", "node_arguments", "store_arguments"]

#: What ``python3 -m`` runs for all of them.
MODULE = "mooncake_tier.cli"


def master_arguments(deployment: Deployment, host: str, folder: str) -> list[str]:
    """Arguments of a cluster's master. host: its own address. folder: for logs and state."""
    return [*_serve(deployment, host, _ports(deployment), folder), "--pool", "0"]


def store_arguments(deployment: Deployment, host: str, master: str, folder: str) -> list[str]:
    """Arguments of the store of one of a cluster's nodes. host: its own address. master: the master's."""
    served = _serve(deployment, host, _ports(deployment), folder)
    return [*served, *_pool(deployment), "--master", f"{master}:{deployment.ports.tier_rpc}"]


def node_arguments(deployment: Deployment, host: str, ports: tuple[int, int, int], folder: str) -> list[str]:
    """Arguments of master and store of one machine, in one process. ports: calls, metrics, store."""
    return [*_serve(deployment, host, ports, folder), *_pool(deployment), "--threads", "2"]


def _serve(deployment: Deployment, host: str, ports: tuple[int, int, int], folder: str) -> list[str]:
    tier, (calls, metrics, store) = _tier(deployment), ports
    return [
        "serve",
        *("--host", host, "--run-dir", folder),
        *("--rpc-port", str(calls), "--metrics-port", str(metrics), "--pool-port", str(store)),
        *("--lease", str(tier.lease_seconds), "--protocol", tier.protocol),
    ]


def _pool(deployment: Deployment) -> list[str]:
    return ["--pool", f"{int(_tier(deployment).memory) >> 20}MiB"]


def _ports(deployment: Deployment) -> tuple[int, int, int]:
    ports = deployment.ports
    return ports.tier_rpc, ports.tier_metrics, ports.tier_store


def _tier(deployment: Deployment) -> Tier:
    if deployment.tier is None:
        raise ValueError(f"{deployment.name} has no DRAM tier; set tier, or do not render one")
    return deployment.tier
