"""Sections of a deployment that differ between roles: groups, their parallelism, and their own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ROLES", "Role", "RoleName", "Roles", "Strict", "Workers"]

RoleName = Literal["prefill", "decode", "aggregated"]
ROLES: tuple[RoleName, ...] = ("prefill", "decode", "aggregated")


class Strict(BaseModel):
    """A section: unknown keys are findings, and values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Workers(Strict):
    """How many groups serve each role; a group is one engine, on as many GPUs as its parallelism needs."""

    prefill: Annotated[int, Field(ge=0)] = 0
    decode: Annotated[int, Field(ge=0)] = 0
    aggregated: Annotated[int, Field(ge=0)] = 0


class Role(Strict):
    """Settings of one role's groups that the other role need not share.

    tensor_parallel: GPUs that share each attention layer. data_parallel: copies of attention in a group, each with a
        KV cache of its own; experts are spread over all GPUs of the group with expert_parallel (DEP8: data_parallel 8
        and expert_parallel). all2all: how experts' tokens travel.
    max_batched_tokens: prefill's chunk. max_sequences: requests a step. None takes engine's.
    gpu_memory: fraction of the GPU's memory for vLLM. None takes engine's.
    arguments, environment: further engine arguments and variables; none that another key of the recipe sets.
    """

    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    data_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    expert_parallel: bool = False
    all2all: (
        Literal[
            "allgather_reducescatter",
            "deepep_high_throughput",
            "deepep_low_latency",
            "flashinfer_nvlink_one_sided",
            "flashinfer_nvlink_two_sided",
        ]
        | None
    ) = None
    max_batched_tokens: Annotated[int, Field(gt=0)] | None = None
    max_sequences: Annotated[int, Field(gt=0)] | None = None
    gpu_memory: Annotated[float, Field(gt=0, lt=1)] | None = None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of one group."""
        return self.tensor_parallel * self.data_parallel


class Roles(Strict):
    """One section a role."""

    prefill: Role = Role()
    decode: Role = Role()
    aggregated: Role = Role()
