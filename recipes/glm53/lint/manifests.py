"""Kubernetes objects: kinds, fields, names and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from glm53.deployment import Finding
from glm53.lint import pods, references
from glm53.lint.commands import documents
from glm53.lint.graph_schema import GraphDeployment
from glm53.lint.kinds import CUSTOM, KINDS

__all__ = ["objects", "problems"]

_FIX = "Render the recipe again, and change the recipe rather than the file."
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
        yield from _fields(where, obj)
    yield from references.problems(found)
    yield from pods.problems(found, files)


def _fields(where: str, obj: dict[str, Any]) -> Iterator[Finding]:
    known = (str(obj.get("apiVersion")), str(obj.get("kind")))
    graph = known[1] == "DynamoGraphDeployment"
    if known not in KINDS and not graph:
        yield _found("object-kind", where, f"{known[0]} {known[1]} is no kind that recipes render.")
    model: type[BaseModel] | None = GraphDeployment if graph else CUSTOM.get(known)
    if model is None:
        return
    try:
        model.model_validate(obj)
    except ValidationError as error:
        code = "graph-schema" if graph else "object-schema"
        for item in error.errors():
            field = ".".join(str(part) for part in item["loc"])
            shape = " It is the shape of v1alpha1." if "services" in item["loc"] else ""
            yield Finding(code, f"{where} {field}", f"{str(item['input'])[:80]!r}: {item['msg']}.{shape}", _FIX)


def _metadata(where: str, obj: dict[str, Any]) -> Iterator[Finding]:
    metadata = obj.get("metadata", {})
    name = str(metadata.get("name", ""))
    if not _SUBDOMAIN.fullmatch(name) or len(name) > 63:
        yield _found("object-name", where, f"{name!r} is no name: lower-case letters, digits, hyphens, at most 63.")
    for key, value in metadata.get("labels", {}).items():
        if not _LABEL.fullmatch(str(value)) or len(str(value)) > 63:
            yield _found("object-label", where, f"{key}={value!r} is no label.")


def _found(code: str, where: str, message: str) -> Finding:
    return Finding(code, where, message, _FIX)
