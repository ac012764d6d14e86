"""The `DynamoGraphDeployment`: frontend, prefill and decode as components of one graph."""

from __future__ import annotations

from typing import Any

from glm53.commands.capture import capture_environment, captures
from glm53.commands.connectors import Master
from glm53.commands.engine import Place, engine_arguments, engine_environment
from glm53.commands.frontend import frontend_arguments, frontend_environment
from glm53.commands.volume import model_folder
from glm53.deployment import Deployment, Role, RoleName
from glm53.render.kubernetes.pods import (
    MOUNT,
    environment,
    labels,
    pod,
    probe,
    tier_master_name,
    volume_mounts,
    volumes,
)

__all__ = ["CLAIM", "graph"]

CLAIM = "compute-domain"
CAPTURE_MOUNT = "/capture"
_RECORDS_MOUNT = {"name": "capture", "mountPath": CAPTURE_MOUNT}

_TYPES = {"prefill": "prefill", "decode": "decode", "aggregated": "worker"}


def graph(deployment: Deployment) -> dict[str, Any]:
    """The object, as plain data."""
    components = [_frontend(deployment)]
    components += [_worker(deployment, name, role, groups) for name, role, groups in deployment.served()]
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": deployment.name, "labels": labels(deployment, "graph")},
        "spec": {"backendFramework": "vllm", "components": components},
    }


def _frontend(deployment: Deployment) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": deployment.image("frontend"),
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": frontend_arguments(deployment, "0.0.0.0", deployment.ports.http),
        "env": environment(deployment, frontend_environment(deployment), plugins=False),
        "livenessProbe": probe("/live", "http", period=10, failures=3),
        "readinessProbe": probe("/health", "http", period=10, failures=3),
        "resources": {"requests": {"cpu": "8", "memory": "16Gi"}, "limits": {"memory": "32Gi"}},
        # Prompts are turned into tokens here, with the tokenizer of the shared volume.
        "volumeMounts": volume_mounts(),
    }
    return {
        "name": "frontend",
        "type": "frontend",
        "replicas": deployment.frontend.replicas,
        "runtimeVersionOverride": deployment.release,
        "podTemplate": {
            "metadata": {"labels": labels(deployment, "frontend")},
            "spec": pod(deployment, [main], volumes=volumes(deployment)),
        },
    }


def _worker(deployment: Deployment, name: RoleName, role: Role, groups: int) -> dict[str, Any]:
    nodes, domain = deployment.nodes(name), _in_compute_domain(deployment)
    spec = pod(
        deployment,
        [_engine(deployment, name, role)],
        nodeSelector={"kubernetes.io/arch": deployment.machine.architecture},
        # A group that is told to stop finishes what it is streaming.
        terminationGracePeriodSeconds=600,
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=volumes(deployment) + ([_records(deployment)] if captures(deployment, name) else []),
    )
    if domain:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": f"{deployment.name}-{CLAIM}"}]
    component: dict[str, Any] = {
        "name": name,
        "type": _TYPES[name],
        "replicas": groups,
        # Otherwise the operator reads it from the image's tag, which a mirror may have changed.
        "runtimeVersionOverride": deployment.release,
        # NCCL and vLLM's worker processes share memory.
        "sharedMemorySize": "64Gi",
        "podTemplate": {"metadata": {"labels": labels(deployment, name)}, "spec": spec},
    }
    if nodes > 1:
        component["multinode"] = {"nodeCount": nodes}
    if deployment.model.adapters:
        component["modelRef"] = {"name": deployment.model.served_name}
    if deployment.capacity.policy == "serverless" and name == "decode":
        component["scalingAdapter"] = {}
    return component


def _engine(deployment: Deployment, name: RoleName, role: Role) -> dict[str, Any]:
    ports, cluster = deployment.ports, deployment.cluster
    place = Place(
        model=model_folder(deployment, MOUNT),
        events=f"tcp://*:{ports.kv_events}",
        master=Master.at(deployment, tier_master_name(deployment), "$(VLLM_NIXL_SIDE_CHANNEL_HOST)"),
    )
    values = engine_environment(deployment, name) | {
        **capture_environment(deployment, name, f"{CAPTURE_MOUNT}/{deployment.name}"),
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports.side_channel),
        **_fabric(deployment),
    }
    # Dynamo finds the address by itself only where NIXL is not inside MultiConnector; vLLM's default is localhost.
    address = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    counted = {"nvidia.com/gpu": str(min(role.gpus, deployment.machine.gpus))}
    if cluster.rdma:
        counted[cluster.rdma] = "1"
    resources: dict[str, Any] = {"limits": counted, "requests": counted | {"memory": "128Gi"}}
    if _in_compute_domain(deployment):
        resources["claims"] = [{"name": CLAIM}]
    return {
        "name": "main",
        "image": deployment.image("engine"),
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": engine_arguments(deployment, name, place),
        "env": sorted([*environment(deployment, values), address], key=lambda one: str(one["name"])),
        # Loading the weights from a shared volume can take an hour; until then nothing else is probed.
        "startupProbe": probe("/live", "system", period=10, failures=720),
        # The operator's own default ends a worker at the first answer that is 4 s late.
        "livenessProbe": probe("/live", "system", period=10, failures=6),
        "readinessProbe": probe("/health", "system", period=10, failures=3),
        "resources": resources,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": volume_mounts() + ([_RECORDS_MOUNT] if captures(deployment, name) else []),
    }


def _records(deployment: Deployment) -> dict[str, Any]:
    """The volume that holds captured requests, as a pod's volume."""
    assert deployment.capture is not None
    return {"name": _RECORDS_MOUNT["name"], "persistentVolumeClaim": {"claimName": deployment.capture.volume}}


def _in_compute_domain(deployment: Deployment) -> bool:
    return deployment.machine.nvlink_nodes > 1 and deployment.cluster.compute_domain


def _fabric(deployment: Deployment) -> dict[str, str]:
    """NVLink across nodes is used where there is a ComputeDomain, and refused rather than replaced by the network."""
    return {"NCCL_CUMEM_ENABLE": "1", "NCCL_MNNVL_ENABLE": "1"} if _in_compute_domain(deployment) else {}
