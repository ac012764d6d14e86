"""What every pod of a deployment has in common: labels, the shared volume, environment, probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glm53.commands.volume import plugins_folder
from glm53.deployment import Deployment

__all__ = [
    "MOUNT",
    "environment",
    "labels",
    "pod",
    "priority_class_name",
    "probe",
    "tier_master_name",
    "volume_mounts",
    "volumes",
    "writing_pod",
]

MOUNT = "/models"
_VOLUME = "models"


def labels(deployment: Deployment, component: str) -> dict[str, str]:
    """Labels by which policies and monitors find the pods."""
    return {
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "glm53",
        "app.kubernetes.io/part-of": deployment.name,
    }


def environment(deployment: Deployment, values: Mapping[str, str], *, plugins: bool = True) -> list[dict[str, Any]]:
    """A container's variables, sorted. plugins: put the shared volume's plugins on Python's path."""
    given = dict(values)
    if plugins:
        given["PYTHONPATH"] = plugins_folder(deployment, MOUNT)
    return [{"name": name, "value": value} for name, value in sorted(given.items())]


def volumes(deployment: Deployment, *, writable: bool = False) -> list[dict[str, Any]]:
    """The shared volume as a pod's volume."""
    claim = {"claimName": deployment.cluster.volume} | ({} if writable else {"readOnly": True})
    return [{"name": _VOLUME, "persistentVolumeClaim": claim}]


def volume_mounts(*, writable: bool = False) -> list[dict[str, Any]]:
    """The shared volume in a container."""
    return [{"name": _VOLUME, "mountPath": MOUNT} | ({} if writable else {"readOnly": True})]


def pod(deployment: Deployment, containers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A pod's specification with the deployment's pull secret and priority."""
    cluster = deployment.cluster
    spec: dict[str, Any] = {"containers": containers, **more}
    if cluster.pull_secret:
        spec["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    if priority := cluster.priority_class or priority_class_name(deployment):
        spec["priorityClassName"] = priority
    return spec


def writing_pod(deployment: Deployment, container: dict[str, Any], restart: str) -> dict[str, Any]:
    """A pod that fills the volume, on a node of the engines' kind, so that their image runs there."""
    return pod(
        deployment,
        [container | {"volumeMounts": volume_mounts(writable=True)}],
        nodeSelector={"kubernetes.io/arch": deployment.machine.architecture},
        restartPolicy=restart,
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=volumes(deployment, writable=True),
    )


def priority_class_name(deployment: Deployment) -> str | None:
    """The PriorityClass that is made with the deployment, if there is one."""
    return None if deployment.capacity.priority is None else f"{deployment.name}-{deployment.capacity.policy}"


def tier_master_name(deployment: Deployment) -> str:
    """The service by which workers and stores find the DRAM tier's master."""
    return f"{deployment.name}-tier-master"


def probe(path: str, port: str, *, period: int, failures: int) -> dict[str, Any]:
    """An HTTP probe. period: seconds between tries. failures: in a row until it acts."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 4,
        "failureThreshold": failures,
    }
