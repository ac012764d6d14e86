"""Kinds of objects that are rendered: Kubernetes' own by name, those of others with the fields that recipes use.

Sources: the custom resource definitions of NVIDIA's DRA driver for GPUs (ComputeDomain), Dynamo 1.6 (DynamoModel), the
Prometheus operator (PodMonitor) and KEDA (ScaledObject). The graph has a module of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CUSTOM", "KINDS"]


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Object(_Exact):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]


_Duration = Annotated[str, Field(pattern=r"^\d+(ms|s|m|h)$")]


class _Template(_Exact):
    name: Annotated[str, Field(min_length=1)]


class _Channel(_Exact):
    resourceClaimTemplate: _Template


class _Domain(_Exact):
    # With a number, a group that is replaced would wait for nodes that never come.
    numNodes: Literal[0]
    channel: _Channel


class _ComputeDomain(_Object):
    spec: _Domain


class _Source(_Exact):
    uri: Annotated[str, Field(pattern=r"^(file|s3|hf)://.+")]


class _Adapter(_Exact):
    modelName: Annotated[str, Field(min_length=1)]
    baseModelName: Annotated[str, Field(min_length=1)]
    modelType: Literal["lora"]
    source: _Source


class _DynamoModel(_Object):
    spec: _Adapter


class _Endpoint(_Exact):
    port: str
    path: Literal["/metrics"]
    interval: _Duration


class _Selector(_Exact):
    matchLabels: Annotated[dict[str, str], Field(min_length=1)]


class _Monitor(_Exact):
    selector: _Selector
    podMetricsEndpoints: Annotated[list[_Endpoint], Field(min_length=1)]


class _PodMonitor(_Object):
    spec: _Monitor


class _Target(_Exact):
    apiVersion: Literal["nvidia.com/v1alpha1"]
    kind: Literal["DynamoGraphDeploymentScalingAdapter"]
    name: str


class _Query(_Exact):
    serverAddress: Annotated[str, Field(pattern=r"^https?://")]
    query: Annotated[str, Field(min_length=1)]
    threshold: Annotated[str, Field(pattern=r"^\d+(\.\d+)?$")]


class _Trigger(_Exact):
    type: Literal["prometheus"]
    metadata: _Query


class _Scaling(_Exact):
    scaleTargetRef: _Target
    minReplicaCount: Annotated[int, Field(ge=0)]
    maxReplicaCount: Annotated[int, Field(ge=1)]
    cooldownPeriod: Annotated[int, Field(ge=0)]
    triggers: Annotated[list[_Trigger], Field(min_length=1)]


class _ScaledObject(_Object):
    spec: _Scaling


#: (apiVersion, kind) of others -> its fields.
CUSTOM: dict[tuple[str, str], type[BaseModel]] = {
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): _ComputeDomain,
    ("nvidia.com/v1alpha1", "DynamoModel"): _DynamoModel,
    ("monitoring.coreos.com/v1", "PodMonitor"): _PodMonitor,
    ("keda.sh/v1alpha1", "ScaledObject"): _ScaledObject,
}

#: Every (apiVersion, kind) that may be among rendered objects.
KINDS = {
    *CUSTOM,
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
}
