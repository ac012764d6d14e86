"""An edge as Kubernetes manifests: Envoy behind a Service, its files in a ConfigMap, keys and certificate secret."""

from __future__ import annotations

import hashlib
from typing import Any

from glm53.dashboards.grafana import config_map, dashboard
from glm53.dashboards.panels import EDGE
from glm53.edge.envoy import render
from glm53.edge.model import Edge
from glm53.edge.parts import CLUSTERS, ENVOY, KEYS, TLS
from glm53.output.manifest import documents

__all__ = ["render_kubernetes"]

_FILES, _KEYS, _TLS = "/etc/edge", "/etc/edge-keys", "/etc/edge-tls"
_BOOTSTRAP = "glm53/bootstrap"
#: Seconds for which a pod that is told to stop goes on with the streams it has; no new ones reach it.
_FAREWELL = 600


def render_kubernetes(edge: Edge) -> dict[str, str]:
    """Path -> text of the one file."""
    # Inside a pod the secrets' files have fixed places, whatever a local run would read.
    inside = edge.model_copy(update={"listen": "0.0.0.0", "tls": None, "keys": None})
    paths = {CLUSTERS: _FILES, TLS: _FILES, KEYS: _KEYS, "certificate": _TLS}
    files = render(inside, paths)
    charts = config_map(f"{edge.name}-dashboard", _labels(edge), dashboard(edge.name, f"Edge {edge.name}", EDGE))
    objects = [
        *(_config(edge, files), _deployment(inside, files[ENVOY]), _service(edge)),
        *(_budget(edge), _monitor(edge), charts),
    ]
    return {"edge.yaml": documents(objects)}


def _config(edge: Edge, files: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(edge), "data": files}


def _deployment(edge: Edge, bootstrap: str) -> dict[str, Any]:
    secrets = {"keys": (edge.keys_secret, _KEYS), "tls": (edge.tls_secret, _TLS)}
    volumes: list[dict[str, Any]] = [{"name": "files", "configMap": {"name": edge.name}}]
    mounts: list[dict[str, Any]] = [{"name": "files", "mountPath": _FILES, "readOnly": True}]
    for name, (secret, path) in secrets.items():
        if secret is not None:
            volumes.append({"name": name, "secret": {"secretName": secret}})
            mounts.append({"name": name, "mountPath": path, "readOnly": True})
    container = {
        "name": "envoy",
        "image": edge.image,
        "command": ["envoy", "-c", f"{_FILES}/{ENVOY}", "--disable-hot-restart", "--log-level", "warning"],
        "ports": [
            {"name": "api", "containerPort": edge.port},
            {"name": "metrics", "containerPort": edge.metrics_port},
        ],
        "livenessProbe": {"tcpSocket": {"port": "api"}, "periodSeconds": 10, "failureThreshold": 3},
        # The metrics need no key and no certificate, and are there once Envoy has read its files.
        "readinessProbe": {"httpGet": {"path": "/stats/prometheus", "port": "metrics"}, "periodSeconds": 5},
        "lifecycle": {"preStop": {"sleep": {"seconds": _FAREWELL}}},
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
        },
        "volumeMounts": mounts,
    }
    spec = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": _FAREWELL + 30,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _labels(edge)},
            }
        ],
    }
    # Members, keys and certificate are taken while Envoy runs; all else with new pods.
    digest = hashlib.sha256(bootstrap.encode()).hexdigest()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(edge),
        "spec": {
            "replicas": edge.replicas,
            "selector": {"matchLabels": _labels(edge)},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": _labels(edge), "annotations": {_BOOTSTRAP: digest}}, "spec": spec},
        },
    }


def _service(edge: Edge) -> dict[str, Any]:
    port = {"name": "api", "port": 443 if edge.tls_secret else 80, "targetPort": "api"}
    spec = {"selector": _labels(edge), "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(edge), "spec": spec}


def _budget(edge: Edge) -> dict[str, Any]:
    spec = {"maxUnavailable": 1 if edge.replicas > 1 else 0, "selector": {"matchLabels": _labels(edge)}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": _metadata(edge), "spec": spec}


def _monitor(edge: Edge) -> dict[str, Any]:
    endpoint = {"port": "metrics", "path": "/stats/prometheus", "interval": "15s"}
    spec = {"selector": {"matchLabels": _labels(edge)}, "podMetricsEndpoints": [endpoint]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(edge),
        "spec": spec,
    }


def _metadata(edge: Edge) -> dict[str, Any]:
    return {"name": edge.name, "labels": _labels(edge)}


def _labels(edge: Edge) -> dict[str, str]:
    return {
        "app.kubernetes.io/component": "edge",
        "app.kubernetes.io/managed-by": "glm53",
        "app.kubernetes.io/part-of": edge.name,
    }
