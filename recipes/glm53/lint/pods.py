"""Pods against what runs in them: volumes, ports, GPUs, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glm53.deployment import Finding
from glm53.lint.commands import Command, from_manifests, option
from glm53.lint.tier import section

__all__ = ["Pod", "pods", "problems"]

#: Ports that Dynamo's operator adds to the main container of a frontend, and of a worker: name -> number.
_FRONTENDS_PORTS = {"http": 8000}
_WORKERS_PORTS = {"system": 9090}
_ARCHITECTURE = "kubernetes.io/arch"
_GPU = "nvidia.com/gpu"
#: Name of a container's port -> the option of `mooncake-tier serve` that opens it.
_OPENED_BY = {"rpc": "--rpc-port", "metrics": "--metrics-port", "store": "--pool-port"}


@dataclass(frozen=True)
class Pod:
    """A pod's template where it stands. replicas, nodes: groups of such pods, and pods of one group.

    ports: name -> number, those that Dynamo's operator adds included.
    """

    where: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    replicas: int
    nodes: int
    ports: Mapping[str, int]


def pods(found: Sequence[tuple[str, dict[str, Any]]]) -> list[Pod]:
    """Every template of a pod. found: file and content of every object."""
    return [pod for file, obj in found for pod in _of_object(file, obj)]


def problems(found: Sequence[tuple[str, dict[str, Any]]], files: Mapping[str, str]) -> Iterator[Finding]:
    """What would keep pods from starting, or from being found by what looks for them."""
    every = pods(found)
    commands = from_manifests(files)
    models = {option(one, "--model") or "" for one in commands if one.kind == "engine"}
    for pod in every:
        yield from _volumes(pod)
        yield from _probes(pod)
        for container in pod.spec.get("containers", []):
            yield from _devices(pod, container)
            for command in [one for one in commands if _same(one, container)][:1]:
                yield from _runs(pod, container, command, models)
    yield from _one_claim(every)
    yield from _one_architecture(every)
    yield from _stores(every, commands)


def _of_object(file: str, obj: Mapping[str, Any]) -> Iterator[Pod]:
    spec = obj.get("spec", {})
    where = f"{file} {obj.get('kind')} {obj.get('metadata', {}).get('name')}"
    for component in spec.get("components", []):
        given = _FRONTENDS_PORTS if component.get("type") == "frontend" else _WORKERS_PORTS
        nodes = (component.get("multinode") or {}).get("nodeCount", 1)
        template = component.get("podTemplate", {})
        yield _pod(f"{where} {component.get('name')}", template, component.get("replicas", 1), nodes, given)
    if "template" in spec:
        yield _pod(where, spec["template"], spec.get("replicas", 1), 1, {})


def _pod(where: str, template: Mapping[str, Any], replicas: int, nodes: int, given: Mapping[str, int]) -> Pod:
    spec = template.get("spec", {})
    named = {port.get("name", ""): port["containerPort"] for one in _containers(spec) for port in one.get("ports", [])}
    return Pod(where, template.get("metadata", {}).get("labels", {}), spec, replicas, nodes, {**given, **named})


def _containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in spec.get("containers", []) if isinstance(one, dict)]


def _volumes(pod: Pod) -> Iterator[Finding]:
    declared = {volume.get("name") for volume in pod.spec.get("volumes", [])}
    mounted = {mount["name"] for one in _containers(pod.spec) for mount in one.get("volumeMounts", [])}
    if mounted != declared:
        yield _found("volume-missing", pod, f"containers mount {_names(mounted)}, the pod has {_names(declared)}.")


def _probes(pod: Pod) -> Iterator[Finding]:
    for container in _containers(pod.spec):
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            port = probe.get("httpGet", probe.get("tcpSocket", {})).get("port")
            if probe and port not in pod.ports:
                yield _found("port-missing", pod, f"{kind} asks the port {port!r}; there are {_names(pod.ports)}.")
            path = probe.get("httpGet", {}).get("path", "/health")
            if path not in ("/health", "/live"):
                yield _found("probe-path", pod, f"{kind} asks for {path!r}, where no process answers.")


def _devices(pod: Pod, container: Mapping[str, Any]) -> Iterator[Finding]:
    """Kubernetes refuses a pod whose requests and limits of a device differ."""
    requests, limits = (container.get("resources", {}).get(key, {}) for key in ("requests", "limits"))
    for name in sorted({*requests, *limits}):
        if "/" in name and requests.get(name) != limits.get(name):
            seen = f"it requests {requests.get(name)} and is limited to {limits.get(name)}"
            yield _found("devices-differ", pod, f"{name}: {seen}; for a device both are one number.")


def _runs(pod: Pod, container: Mapping[str, Any], command: Command, models: set[str]) -> Iterator[Finding]:
    """models: folders of checkpoints, which engines read, frontends take the tokenizer from, and the job fills."""
    mounts = [str(mount["mountPath"]) for mount in container.get("volumeMounts", [])]
    needed = {command.env.get("PYTHONPATH", "")} | (set() if command.kind.startswith("tier") else models)
    for path in sorted(needed):
        if path and not any(path.startswith(f"{mount.rstrip('/')}/") for mount in mounts):
            yield _found("not-mounted", pod, f"{path} is in none of the mounts {_names(mounts)}.")
    if command.kind == "engine":
        ranks = [int(option(command, f"--{name}-parallel-size") or 1) for name in ("tensor", "data")]
        gpus = int(container.get("resources", {}).get("limits", {}).get(_GPU, 0)) * pod.nodes
        if gpus != ranks[0] * ranks[1]:
            needs = f"tensor parallel {ranks[0]} x data parallel {ranks[1]}"
            yield _found("gpus", pod, f"{pod.nodes} pods of a group have {gpus} GPUs, and {needs} is another number.")
    for name, flag in _OPENED_BY.items():
        if command.kind.startswith("tier") and name in pod.ports and option(command, flag) != str(pod.ports[name]):
            yield _found("port-missing", pod, f"port {name} is {pod.ports[name]}, {flag} is {option(command, flag)}.")


def _one_claim(every: Sequence[Pod]) -> Iterator[Finding]:
    """A path that several pods have, such as the models', is the same volume in all of them."""
    first: dict[str, tuple[Pod, Any]] = {}
    for pod in every:
        claims = {
            volume.get("name"): volume["persistentVolumeClaim"].get("claimName")
            for volume in pod.spec.get("volumes", [])
            if "persistentVolumeClaim" in volume
        }
        for container in _containers(pod.spec):
            for mount in container.get("volumeMounts", []):
                claim = claims.get(mount["name"])
                other, seen = first.setdefault(mount["mountPath"], (pod, claim))
                if claim and seen and claim != seen:
                    yield _found("claims-differ", pod, f"{mount['mountPath']} is {claim}, in {other.where} {seen}.")


def _one_architecture(every: Sequence[Pod]) -> Iterator[Finding]:
    """The image of the engines is of one architecture, and so is what was installed into the volume."""
    chosen = {pod.where: pod.spec["nodeSelector"].get(_ARCHITECTURE) for pod in every if "nodeSelector" in pod.spec}
    if len(set(chosen.values())) > 1:
        yield Finding("architectures", "nodeSelector", f"nodes of several architectures: {chosen}.", _FIX)


def _stores(every: Sequence[Pod], commands: Sequence[Command]) -> Iterator[Finding]:
    """One store on each node that computes prompts, and one master."""
    tiered = [command for command in commands if section(command)]
    if not tiered:
        return
    computing = [pod for pod in every if _runs_role(pod, tiered)]
    nodes = sum(pod.replicas * pod.nodes for pod in computing)
    for pod in every:
        kinds = {one.kind for one in commands if any(_same(one, container) for container in _containers(pod.spec))}
        if "tier-store" in kinds and pod.replicas != nodes:
            yield _found(
                "stores", pod, f"{pod.replicas} stores, one to a node, for {nodes} nodes that compute prompts."
            )
        if "tier-master" in kinds and pod.replicas != 1:
            yield _found("stores", pod, f"{pod.replicas} masters would each know some of the blocks.")


def _runs_role(pod: Pod, commands: Sequence[Command]) -> bool:
    return any(_same(command, container) for command in commands for container in _containers(pod.spec))


def _same(command: Command, container: Mapping[str, Any]) -> bool:
    return list(command.argv) == [str(word) for word in [*container.get("command", []), *container.get("args", [])]]


def _names(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


_FIX = "Render the recipe again, and change the recipe rather than the file."


def _found(code: str, pod: Pod, message: str) -> Finding:
    return Finding(code, pod.where, message, _FIX)
