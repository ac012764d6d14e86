"""Objects around the graph: NVLink domain, disruption budgets, scraping, scaling, adapters."""

from __future__ import annotations

import re
from typing import Any

from glm53.dashboards.grafana import config_map, dashboard
from glm53.dashboards.panels import SERVING
from glm53.deployment import Deployment
from glm53.render.kubernetes.graph import CLAIM
from glm53.render.kubernetes.pods import labels, priority_class_name

__all__ = ["adapters", "charts", "compute_domain", "disruption", "fences", "metrics", "priority", "scaling"]


def compute_domain(deployment: Deployment) -> list[dict[str, Any]]:
    """NVLink across the nodes of an NVL72; the driver makes the claim template that the pods name."""
    if deployment.machine.nvlink_nodes == 1 or not deployment.cluster.compute_domain:
        return []
    return [
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": deployment.name, "labels": labels(deployment, "compute-domain")},
            "spec": {
                # 0: a pod starts as soon as its own node has joined. With a number the driver waits for so many,
                # and a group that is replaced would wait for ever.
                "numNodes": 0,
                "channel": {"resourceClaimTemplate": {"name": f"{deployment.name}-{CLAIM}"}},
            },
        }
    ]


def disruption(deployment: Deployment) -> list[dict[str, Any]]:
    """Budgets: a drained node takes at most one group of a role, and never the only one."""
    counts = [("frontend", deployment.frontend.replicas, 1)]
    counts += [(name, groups, deployment.nodes(name)) for name, _, groups in deployment.served()]
    if deployment.tier:
        counts.append(("tier-master", 1, 1))
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"{deployment.name}-{name}", "labels": labels(deployment, name)},
            "spec": {
                "maxUnavailable": nodes if groups > 1 else 0,
                "selector": {"matchLabels": labels(deployment, name)},
            },
        }
        for name, groups, nodes in counts
    ]


def fences(deployment: Deployment) -> list[dict[str, Any]]:
    """Workers and tier ask nobody who they are: only this deployment's pods reach them, and anybody their metrics."""
    ports = deployment.ports
    inside = [
        *(name for name, _, _ in deployment.served()),
        *(["tier-master", "tier-store"] if deployment.tier else []),
    ]
    peers = [{"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": deployment.name}}}]
    metrics = [{"port": ports.system}, *([{"port": ports.tier_metrics}] if deployment.tier else [])]
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"{deployment.name}-inside", "labels": labels(deployment, "fence")},
            "spec": {
                "podSelector": {
                    "matchLabels": {"app.kubernetes.io/part-of": deployment.name},
                    "matchExpressions": [
                        {"key": "app.kubernetes.io/component", "operator": "In", "values": inside},
                    ],
                },
                "policyTypes": ["Ingress"],
                "ingress": [{"from": peers}, {"ports": metrics}],
            },
        }
    ]


def metrics(deployment: Deployment) -> list[dict[str, Any]]:
    """What Prometheus scrapes; the port names are those that Dynamo's operator gives its containers."""
    ports = [("frontend", "http")] + [(name, "system") for name, _, _ in deployment.served()]
    if deployment.tier:
        ports.append(("tier-master", "metrics"))
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": {"name": f"{deployment.name}-{name}", "labels": labels(deployment, name)},
            "spec": {
                "selector": {"matchLabels": labels(deployment, name)},
                "podMetricsEndpoints": [{"port": port, "path": "/metrics", "interval": "15s"}],
            },
        }
        for name, port in ports
    ]


def charts(deployment: Deployment) -> list[dict[str, Any]]:
    """The dashboard, where Grafana's sidecar finds it."""
    content = dashboard(deployment.name, f"GLM-5.3 {deployment.name}", SERVING)
    return [config_map(f"{deployment.name}-dashboard", labels(deployment, "dashboard"), content)]


def scaling(deployment: Deployment) -> list[dict[str, Any]]:
    """KEDA for serverless capacity: more decode groups while requests wait, fewer when none has for ten minutes."""
    capacity = deployment.capacity
    if capacity.policy != "serverless":
        return []
    return [
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": f"{deployment.name}-decode", "labels": labels(deployment, "scaling")},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "nvidia.com/v1alpha1",
                    "kind": "DynamoGraphDeploymentScalingAdapter",
                    "name": f"{deployment.name}-decode",
                },
                "minReplicaCount": capacity.min_decode,
                "maxReplicaCount": capacity.max_decode,
                "cooldownPeriod": 600,
                "triggers": [
                    {
                        "type": "prometheus",
                        "metadata": {
                            "serverAddress": deployment.cluster.prometheus,
                            "query": f'sum(dynamo_frontend_queued_requests{{model="{deployment.model.served_name}"}})',
                            "threshold": "8",
                        },
                    }
                ],
            },
        }
    ]


def priority(deployment: Deployment) -> list[dict[str, Any]]:
    """The class of the pods: reserved capacity may take the place of others, serverless capacity never does."""
    if deployment.capacity.priority is None:
        return []
    reserved = deployment.capacity.policy == "reserved"
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_class_name(deployment), "labels": labels(deployment, "priority")},
            "value": deployment.capacity.priority,
            "preemptionPolicy": "PreemptLowerPriority" if reserved else "Never",
            "globalDefault": False,
            "description": f"{deployment.capacity.policy} capacity of {deployment.name}",
        }
    ]


def adapters(deployment: Deployment) -> list[dict[str, Any]]:
    """LoRA adapters, which the operator loads into every worker of the base model."""
    return [
        {
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "DynamoModel",
            "metadata": {
                "name": f"{deployment.name}-{re.sub('[^a-z0-9]+', '-', adapter.name.lower()).strip('-')}",
                "labels": labels(deployment, "adapter"),
            },
            "spec": {
                "modelName": adapter.name,
                "baseModelName": deployment.model.served_name,
                "modelType": "lora",
                "source": {"uri": adapter.uri},
            },
        }
        for adapter in deployment.model.adapters
    ]
