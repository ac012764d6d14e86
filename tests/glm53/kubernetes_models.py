"""Manifests held against Kubernetes' own API, as its Python client models it, and against a CRD's OpenAPI schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

__all__ = ["api_problems", "crd_problems"]


def api_problems(value: Any, kind: str) -> Iterator[str]:
    """Unknown fields at any depth, then wrong types and missing required ones. kind: a model, such as ``V1Job``."""
    from kubernetes import client

    yield from _unknown(value, kind, kind, client)
    try:
        client.ApiClient().deserialize(SimpleNamespace(data=json.dumps(value)), kind)
    except (ValueError, TypeError, AttributeError) as error:
        yield f"{kind}: {error}"


def _unknown(value: Any, kind: str, path: str, client: Any) -> Iterator[str]:
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{path} is no list"
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from _unknown(item, match[1], f"{path}[{index}]", client)
    elif match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for key, item in value.items():
            yield from _unknown(item, match[1], f"{path}.{key}", client)
    elif kind in ("str", "int", "bool", "float"):
        # Quantities are strings in the model; numbers would do for the API, but this project writes strings.
        if type(value).__name__ != kind:
            yield f"{path}={value!r} is no {kind}"
    elif (model := getattr(client, kind, None)) is not None:
        fields = {json_name: attribute for attribute, json_name in model.attribute_map.items()}
        for key, item in value.items():
            if key not in fields:
                yield f"{path}.{key} does not exist"
            else:
                yield from _unknown(item, model.openapi_types[fields[key]], f"{path}.{key}", client)


def crd_problems(obj: dict[str, Any], crd: dict[str, Any]) -> Iterator[str]:
    """What the schema of the object's version in a CustomResourceDefinition refuses, unknown fields included."""
    import jsonschema

    name = obj["apiVersion"].partition("/")[2]
    versions = {one["name"]: one for one in crd["spec"]["versions"] if one.get("served")}
    if name not in versions:
        yield f"{name} is not served; there are {', '.join(versions)}"
        return
    schema = versions[name]["schema"]["openAPIV3Schema"]
    for error in jsonschema.Draft202012Validator(schema).iter_errors(obj):
        yield f"{error.json_path}: {error.message}"
    yield from _not_in_schema(obj, schema, "$")


def _not_in_schema(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that the API server would drop. Objects without properties, and metadata, take anything."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from _not_in_schema(item, schema["items"], f"{path}[{index}]")
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    properties, more = schema.get("properties"), schema.get("additionalProperties")
    for key, item in value.items():
        if properties and key in properties:
            yield from _not_in_schema(item, properties[key], f"{path}.{key}")
        elif isinstance(more, dict):
            yield from _not_in_schema(item, more, f"{path}.{key}")
        elif properties and not more:
            yield f"{path}.{key} does not exist"
