"""Mooncake on Kubernetes: a master, and a store beside every prefill pod."""

from __future__ import annotations

from typing import Any

from glm53.commands.tier import MODULE, master_arguments, store_arguments
from glm53.deployment import Deployment, RoleName
from glm53.render.kubernetes.pods import environment, labels, pod, tier_master_name, volume_mounts, volumes

__all__ = ["tier"]

_FOLDER = "/tmp/mooncake-tier"


def tier(deployment: Deployment) -> list[dict[str, Any]]:
    """The objects; none without a DRAM tier."""
    if deployment.tier is None:
        return []
    ports = deployment.ports
    master, store = tier_master_name(deployment), f"{deployment.name}-tier-store"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": master, "labels": labels(deployment, "tier-master")},
        "spec": {
            "selector": labels(deployment, "tier-master"),
            "ports": [
                {"name": "rpc", "port": ports.tier_rpc, "targetPort": "rpc"},
                {"name": "metrics", "port": ports.tier_metrics, "targetPort": "metrics"},
            ],
        },
    }
    headless = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": store, "labels": labels(deployment, "tier-store")},
        "spec": {"clusterIP": "None", "selector": labels(deployment, "tier-store")},
    }
    return [
        service,
        headless,
        _master(deployment, master),
        _store(deployment, store, master),
    ]


def _master(deployment: Deployment, name: str) -> dict[str, Any]:
    ports, own = deployment.ports, labels(deployment, "tier-master")
    health = {"httpGet": {"path": "/health", "port": "metrics"}, "periodSeconds": 10}
    container = {
        "name": "master",
        "image": deployment.image("store"),
        "command": ["python3", "-m", MODULE],
        "args": master_arguments(deployment, "$(POD_ADDRESS)", _FOLDER),
        "env": _environment(deployment),
        "ports": [
            {"name": "rpc", "containerPort": ports.tier_rpc},
            {"name": "metrics", "containerPort": ports.tier_metrics},
        ],
        "livenessProbe": health,
        "readinessProbe": health,
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "32Gi"}},
        "volumeMounts": volume_mounts(),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": own},
        "spec": {
            "replicas": 1,
            # Two masters would each know half of the blocks.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": own},
                "spec": pod(deployment, [container], volumes=volumes(deployment)),
            },
        },
    }


def _store(deployment: Deployment, name: str, master: str) -> dict[str, Any]:
    assert deployment.tier is not None
    own, memory = labels(deployment, "tier-store"), int(deployment.tier.memory)
    role: RoleName = "prefill" if deployment.disaggregated else "aggregated"
    needed = {"memory": str(memory + (4 << 30))}
    if deployment.cluster.rdma:
        needed[deployment.cluster.rdma] = "1"
    container = {
        "name": "store",
        "image": deployment.image("store"),
        "command": ["python3", "-m", MODULE],
        "args": store_arguments(deployment, "$(POD_ADDRESS)", master, _FOLDER),
        "env": _environment(deployment),
        "ports": [{"name": "store", "containerPort": deployment.ports.tier_store}],
        "readinessProbe": {"tcpSocket": {"port": "store"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "4", **needed}, "limits": needed},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": volume_mounts(),
    }
    affinity = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_beside(labels(deployment, role))]},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_beside(own)]},
    }
    spec = pod(
        deployment,
        [container],
        affinity=affinity,
        nodeSelector={"kubernetes.io/arch": deployment.machine.architecture},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=volumes(deployment),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": own},
        "spec": {
            "replicas": deployment.tier_nodes,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": own}, "spec": spec},
        },
    }


def _environment(deployment: Deployment) -> list[dict[str, Any]]:
    address = {"name": "POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return sorted([*environment(deployment, {}), address], key=lambda one: str(one["name"]))


def _beside(own: dict[str, str]) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": own}, "topologyKey": "kubernetes.io/hostname"}
