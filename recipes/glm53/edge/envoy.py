"""An edge as Envoy's configuration: a bootstrap, and beside it the parts that may change while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from glm53.edge.listener import listener
from glm53.edge.members import members
from glm53.edge.model import Edge
from glm53.edge.parts import API, CLUSTERS, ENVOY, TLS, address, as_yaml, named, watched

__all__ = ["render"]


def render(edge: Edge, paths: Mapping[str, str]) -> dict[str, str]:
    """Path -> text: the bootstrap, the members, and the certificate's whereabouts where there is one.

    paths: name of each file that may change -> the folder in which Envoy finds it; "certificate" -> that of its files.
    """
    files: dict[str, Any] = {ENVOY: _bootstrap(edge, paths), CLUSTERS: {"resources": [members(edge)]}}
    if edge.tls or edge.tls_secret:
        files[TLS] = {"resources": [_certificate(edge, paths)]}
    return {name: as_yaml(content) for name, content in files.items()}


def _bootstrap(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    return {
        "node": {"id": edge.name, "cluster": edge.name},
        "admin": {"address": address("127.0.0.1", edge.admin_port)},
        "dynamic_resources": {"cds_config": watched(CLUSTERS, paths)},
        "static_resources": {"listeners": [listener(edge, paths), _metrics(edge)], "clusters": [_admin(edge)]},
    }


def _certificate(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    chain, key = (edge.tls.certificate, edge.tls.key) if edge.tls else ("tls.crt", "tls.key")
    folder = paths["certificate"]
    names = {"certificate_chain": chain, "private_key": key}
    files = {name: {"filename": str(PurePath(folder) / value)} for name, value in names.items()}
    return {
        "@type": f"{API}.extensions.transport_sockets.tls.v3.Secret",
        "name": "certificate",
        "tls_certificate": files
        | {"watched_directory": {"path": str(PurePath(files["private_key"]["filename"]).parent)}},
    }


def _metrics(edge: Edge) -> dict[str, Any]:
    """Envoy's own metrics, and nothing else of its admin interface, for Prometheus."""
    route = {"match": {"path": "/stats/prometheus"}, "route": {"cluster": "admin"}}
    manager = {
        "@type": f"{API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "metrics",
        "route_config": {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": [route]}]},
        "http_filters": [named("router", {"@type": f"{API}.extensions.filters.http.router.v3.Router"})],
    }
    return {
        "name": "metrics",
        "address": address(edge.listen, edge.metrics_port),
        "filter_chains": [{"filters": [named("http_connection_manager", manager, "network")]}],
    }


def _admin(edge: Edge) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": address("127.0.0.1", edge.admin_port)}}
    return {
        "name": "admin",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "admin", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
