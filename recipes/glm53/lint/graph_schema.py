"""The fields of Dynamo's `DynamoGraphDeployment` v1beta1 that recipes use, as types that refuse any other.

Source: the Go types in deploy/operator/api/v1beta1 of ai-dynamo/dynamo (release 1.6): field names, enumerations,
patterns and the rules on names, nodes and replicas. Pod templates are Kubernetes' own and looked at elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["GraphDeployment"]

_Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$")]


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Metadata(_Exact):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    labels: dict[str, str] = {}


class _Multinode(_Exact):
    nodeCount: Annotated[int, Field(ge=2)]


class _ModelRef(_Exact):
    name: Annotated[str, Field(min_length=1)]
    revision: str | None = None


class _Nothing(_Exact):
    pass


class _Component(_Exact):
    name: _Name
    type: Literal["frontend", "worker", "prefill", "decode", "planner", "epp"]
    replicas: Annotated[int, Field(ge=0)]
    multinode: _Multinode | None = None
    sharedMemorySize: str | None = None
    modelRef: _ModelRef | None = None
    runtimeVersionOverride: Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,3})(\.(0|[1-9]\d{0,3})){2}$")] | None = None
    scalingAdapter: _Nothing | None = None
    podTemplate: dict[str, Any]

    @model_validator(mode="after")
    def _main_container(self) -> _Component:
        containers = self.podTemplate.get("spec", {}).get("containers", [])
        main = [one for one in containers if one.get("name") == "main"]
        if len(main) != 1 or not main[0].get("image"):
            raise ValueError("its pod template needs exactly one container named main, with an image")
        if self.multinode and self.type not in ("worker", "prefill", "decode"):
            raise ValueError(f"{self.type} cannot span nodes")
        return self


class _Spec(_Exact):
    backendFramework: Literal["sglang", "vllm", "trtllm"] | None = None
    components: Annotated[list[_Component], Field(min_length=1, max_length=25)]

    @model_validator(mode="after")
    def _names(self) -> _Spec:
        names = [component.name.lower() for component in self.components]
        if len(set(names)) < len(names):
            raise ValueError(f"component names are not unique, upper and lower case alike: {', '.join(names)}")
        if len({component.runtimeVersionOverride for component in self.components}) > 1:
            raise ValueError("components declare several runtime versions")
        return self


class GraphDeployment(_Exact):
    """The whole object."""

    apiVersion: Literal["nvidia.com/v1beta1"]
    kind: Literal["DynamoGraphDeployment"]
    metadata: _Metadata
    spec: _Spec
