"""What the parts of Envoy's configuration have in common: names of files and types, addresses, watched files, text.

Source of names and meanings: Envoy's API reference, version 3, release 1.40; a test has that release itself read what
is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

__all__ = [
    *("API", "CLIENT", "CLIENT_HEADER", "CLUSTERS", "ENVOY", "KEYS", "RBAC", "TLS"),
    *("address", "as_yaml", "named", "tls_socket", "watched"),
]

ENVOY, CLUSTERS, TLS, KEYS = "envoy.yaml", "clusters.yaml", "tls.yaml", "keys.yaml"

API = "type.googleapis.com/envoy"
RBAC = f"{API}.extensions.filters.http.rbac.v3.RBAC"

#: Where Envoy's RBAC filter says whose key it was.
CLIENT = ("envoy.filters.http.rbac", "shadow_effective_policy_id")

#: Tells a deployment whose request it is; what a client itself sends under this name is replaced.
CLIENT_HEADER = "x-edge-client"


def as_yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_Plain, sort_keys=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal parts out, because Envoy does not read references to them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def named(name: str, content: Mapping[str, Any], kind: str = "http") -> dict[str, Any]:
    return {"name": f"envoy.filters.{kind}.{name}", "typed_config": dict(content)}


def tls_socket(kind: str, context: Mapping[str, Any]) -> dict[str, Any]:
    typed = {"@type": f"{API}.extensions.transport_sockets.tls.v3.{kind}", **context}
    return {"name": "envoy.transport_sockets.tls", "typed_config": typed}


def watched(name: str, paths: Mapping[str, str]) -> dict[str, Any]:
    folder = paths[name]
    source = {"path": str(PurePath(folder) / name), "watched_directory": {"path": folder}}
    return {"path_config_source": source, "resource_api_version": "V3"}


def address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
