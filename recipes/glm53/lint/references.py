"""What one Kubernetes object names and another one must be: pods, ports, claims, services, configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glm53.deployment import Finding
from glm53.lint.agreement import tier_entry
from glm53.lint.commands import from_container, option
from glm53.lint.pods import Pod, pods
from glm53.lint.tier import section

__all__ = ["problems"]


def problems(found: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[Finding]:
    """found: file and content of every object."""
    objects, every = [obj for _, obj in found], pods(found)
    configs = {obj["metadata"]["name"] for obj in objects if obj.get("kind") == "ConfigMap"}
    claims = {_path(obj, "spec", "channel", "resourceClaimTemplate", "name") for obj in _of(objects, "ComputeDomain")}
    for obj in objects:
        where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
        yield from _selectors(where, obj, every)
        yield from _ports(where, obj, every)
        for key, value in _pairs(obj):
            if key == "configMap" and isinstance(value, dict) and value.get("name") not in configs:
                yield _found("config-missing", where, f"the ConfigMap {value.get('name')} is not among the files.")
            if key == "resourceClaimTemplateName" and value not in claims:
                yield _found("claim-missing", where, f"no ComputeDomain makes the claim template {value}.")
    yield from _services(objects)
    yield from _graph(objects)
    yield from _claims_used(objects)
    yield from _records_kept(objects)


def _selectors(where: str, obj: dict[str, Any], every: Sequence[Pod]) -> Iterator[Finding]:
    """Whatever chooses pods by their labels chooses some."""
    for key, value in _pairs(obj.get("spec", {})):
        if key not in ("selector", "podSelector", "labelSelector") or not isinstance(value, dict):
            continue
        plain = key == "selector" and not {"matchLabels", "matchExpressions"} & value.keys()
        wanted = value if plain else value.get("matchLabels", {})
        if not any(wanted.items() <= pod.labels.items() for pod in every):
            yield _found("selects-nothing", where, f"no pod has the labels {wanted}.")
        for one in [] if plain else value.get("matchExpressions", []):
            labelled = {pod.labels.get(one["key"]) for pod in every}
            if one["operator"] != "In" or set(one["values"]) - labelled:
                yield _found("selects-nothing", where, f"{one['key']} of no pod is in {one['values']}.")


def _ports(where: str, obj: dict[str, Any], every: Sequence[Pod]) -> Iterator[Finding]:
    """Services, monitors and fences name ports that the pods have; a service's number is the pods' own."""
    spec = obj.get("spec", {})
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
    there: dict[str, int] = {}
    for pod in every:
        there |= pod.ports if labels.items() <= pod.labels.items() else {}
    if obj.get("kind") == "Service":
        wrong = [one for one in spec.get("ports", []) if there.get(one.get("targetPort")) != one["port"]]
    elif obj.get("kind") == "PodMonitor":
        wrong = [one for one in spec.get("podMetricsEndpoints", []) if one.get("port") not in there]
    elif obj.get("kind") == "NetworkPolicy":
        numbers = {number for pod in every for number in pod.ports.values()}
        wrong = [one for rule in spec.get("ingress", []) for one in rule.get("ports", []) if one["port"] not in numbers]
    else:
        wrong = []
    for one in wrong:
        yield _found("port-missing", where, f"{one} is no port of its pods, which have {there}.")


def _services(objects: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Names in addresses are services: the master's, and the one that a StatefulSet is governed by."""
    services = {obj["metadata"]["name"] for obj in _of(objects, "Service")}
    for obj in objects:
        where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
        named = {_path(obj, "spec", "serviceName")} if obj.get("kind") == "StatefulSet" else set()
        for key, containers in _pairs(obj):
            for one in containers if key == "containers" else []:
                command = from_container(where, one)
                settings = section(command) if tier_entry(command) else {}
                addresses = [settings.get("master"), settings.get("metrics"), option(command, "--master")]
                named |= {str(address).rpartition(":")[0] for address in addresses if address}
        for name in sorted(map(str, named - services)):
            yield _found("service-missing", where, f"no Service is named {name}.")


def _graph(objects: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Budgets, scaling and adapters fit the graph that they are about."""
    for graph in _of(objects, "DynamoGraphDeployment"):
        components = graph["spec"]["components"]
        scaled = {f"{graph['metadata']['name']}-{one['name']}" for one in components if "scalingAdapter" in one}
        models = {_path(one, "modelRef", "name") for one in components if "modelRef" in one}
        for obj in objects:
            where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
            if obj.get("kind") == "ScaledObject" and _path(obj, "spec", "scaleTargetRef", "name") not in scaled:
                yield _found("scales-nothing", where, f"components with a scaling adapter are {sorted(scaled)}.")
            if obj.get("kind") == "DynamoModel" and models != {_path(obj, "spec", "baseModelName")}:
                yield _found("adapter-base", where, f"workers serve {sorted(map(str, models))}, which is not its base.")
            if obj.get("kind") == "PodDisruptionBudget":
                yield from _budget(where, obj, components)


def _budget(where: str, obj: dict[str, Any], components: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """At most one group of a role may be taken, and never the only one."""
    wanted, least = _path(obj, "spec", "selector", "matchLabels") or {}, _path(obj, "spec", "maxUnavailable")
    for one in components:
        if wanted.items() <= (_path(one, "podTemplate", "metadata", "labels") or {}).items():
            group = (one.get("multinode") or {}).get("nodeCount", 1) if one.get("replicas", 1) > 1 else 0
            if least != group:
                yield _found("budget", where, f"{least} pods may go, where a group is {group} or there is only one.")


def _claims_used(objects: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """A pod's claim that no container names is allocated and used by nobody, and the other way round is refused."""
    for obj in objects:
        for key, spec in _pairs(obj):
            if key != "spec" or not isinstance(spec, dict) or "containers" not in spec:
                continue
            declared = {one["name"] for one in spec.get("resourceClaims", [])}
            used = {
                claim["name"]
                for container in spec["containers"]
                for claim in container.get("resources", {}).get("claims", [])
            }
            if declared != used:
                where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
                yield _found("claim-unused", where, f"the pod declares claims {declared}, its containers use {used}.")


def _records_kept(objects: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Captured requests go to a volume that outlives the pod, and can be written."""
    for obj in objects:
        for key, container in _pairs(obj):
            if key != "containers":
                continue
            for one in container:
                folders = [env.get("value", "") for env in one.get("env", []) if env["name"] == "RL_CAPTURE_DIR"]
                mounts = [mount["mountPath"] for mount in one.get("volumeMounts", []) if not mount.get("readOnly")]
                for folder in folders:
                    if not any(folder.startswith(f"{path}/") for path in mounts):
                        where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
                        yield _found("records-lost", where, f"no volume that can be written holds {folder!r}.")


def _of(objects: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [obj for obj in objects if obj.get("kind") == kind]


def _path(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _pairs(item)
    elif isinstance(value, list):
        for item in value:
            yield from _pairs(item)


def _found(code: str, where: str, message: str) -> Finding:
    return Finding(code, where, message, "Render the recipe again, and change the recipe rather than the file.")
