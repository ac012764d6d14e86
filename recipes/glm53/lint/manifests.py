"""Kubernetes objects: the graph's schema, names, and references that must find something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from glm53.deployment import Finding
from glm53.lint.commands import documents
from glm53.lint.graph_schema import GraphDeployment

__all__ = ["objects", "problems"]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def objects(files: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """File and content of every object."""
    return [(name, obj) for name, text in files.items() if name.endswith(".yaml") for obj in documents(text)]


def problems(files: Mapping[str, str]) -> Iterator[Finding]:
    """What a cluster would refuse, or would accept and never start."""
    try:
        found = objects(files)
    except yaml.YAMLError as error:
        yield Finding("not-yaml", "files", f"a manifest is not YAML: {error}.", "Render the recipe again.")
        return
    seen = set()
    for name, obj in found:
        where = f"{name} {obj.get('kind')}"
        identity = (obj.get("kind"), obj.get("metadata", {}).get("name"))
        if identity in seen:
            yield _found("object-twice", where, f"{identity[1]} is there twice; the second replaces the first.")
        seen.add(identity)
        yield from _metadata(where, obj)
        if obj.get("kind") == "DynamoGraphDeployment":
            yield from _graph(where, obj)
    yield from _references([obj for _, obj in found])


def _graph(where: str, obj: dict[str, Any]) -> Iterator[Finding]:
    try:
        GraphDeployment.model_validate(obj)
    except ValidationError as error:
        for item in error.errors():
            field = ".".join(str(part) for part in item["loc"])
            shape = " It is the shape of v1alpha1." if "services" in item["loc"] else ""
            yield _found("graph-schema", f"{where} {field}", f"{str(item['input'])[:80]!r}: {item['msg']}.{shape}")


def _metadata(where: str, obj: dict[str, Any]) -> Iterator[Finding]:
    metadata = obj.get("metadata", {})
    name = str(metadata.get("name", ""))
    if not _SUBDOMAIN.fullmatch(name) or len(name) > 63:
        yield _found("object-name", where, f"{name!r} is no name: lower-case letters, digits, hyphens, at most 63.")
    for key, value in metadata.get("labels", {}).items():
        if not _LABEL.fullmatch(str(value)) or len(str(value)) > 63:
            yield _found("object-label", where, f"{key}={value!r} is no label.")


def _references(found: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    pods = [labels for obj in found for labels in _pod_labels(obj)]
    configs = {obj["metadata"]["name"] for obj in found if obj.get("kind") == "ConfigMap"}
    claims = {
        obj["spec"]["channel"]["resourceClaimTemplate"]["name"] for obj in found if obj.get("kind") == "ComputeDomain"
    }
    for obj in found:
        where = f"{obj.get('kind')} {obj['metadata'].get('name')}"
        spec = obj.get("spec", {})
        selector = spec.get("selector") if isinstance(spec, dict) else None
        if isinstance(selector, dict):
            wanted = selector.get("matchLabels", selector)
            if not any(wanted.items() <= labels.items() for labels in pods):
                yield _found("selects-nothing", where, f"no pod has the labels {wanted}.")
        for key, value in _pairs(obj):
            if key == "configMap" and isinstance(value, dict) and value.get("name") not in configs:
                yield _found("config-missing", where, f"the ConfigMap {value.get('name')} is not among the files.")
            if key == "resourceClaimTemplateName" and value not in claims:
                yield _found("claim-missing", where, f"no ComputeDomain makes the claim template {value}.")
    yield from _claims_used(found)
    yield from _records_kept(found)


def _claims_used(found: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """A pod's claim that no container names is allocated and used by nobody, and the other way round is refused."""
    for obj in found:
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


def _records_kept(found: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Captured requests go to a volume that outlives the pod, and can be written."""
    for obj in found:
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


def _pod_labels(obj: Any) -> Iterator[dict[str, str]]:
    for key, value in _pairs(obj):
        if key in ("podTemplate", "template") and isinstance(value, dict):
            yield value.get("metadata", {}).get("labels", {})


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
