"""Roles, groups and parallelism: whether the workers fit together, and onto the machine."""

from __future__ import annotations

from collections.abc import Iterator

from glm53.deployment.facts import DENSE_BYTES, WEIGHT_BYTES
from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment
from glm53.deployment.roles import Role, RoleName

__all__ = ["findings"]

_HEADS = 64  # attention heads of GLM-5.3
_CPU_RANKS = 8  # of a group on one machine


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with `workers`, `roles` and `targets`."""
    yield from _workers(deployment)
    yield from _targets(deployment)
    for name, role, _ in deployment.served():
        yield from _parallelism(deployment, name, role)
        if deployment.machine.gpus:
            yield from _memory(deployment, name, role)


def _workers(deployment: Deployment) -> Iterator[Finding]:
    workers = deployment.workers
    if not deployment.served():
        yield Finding(
            "no-workers", "workers", "there is no worker.", "Set prefill and decode, or aggregated, to 1 or more."
        )
    if bool(workers.prefill) != bool(workers.decode):
        yield Finding(
            "half-disaggregated",
            "workers",
            f"prefill={workers.prefill} and decode={workers.decode}: each role needs the other.",
            "Give both at least 1, or use aggregated workers.",
        )
    if workers.aggregated and (workers.prefill or workers.decode):
        yield Finding(
            "mixed-roles",
            "workers.aggregated",
            "aggregated workers and prefill/decode workers would serve the same model name side by side.",
            "Set aggregated to 0, or prefill and decode to 0.",
        )


def _targets(deployment: Deployment) -> Iterator[Finding]:
    for target in deployment.targets:
        local = target == "local"
        if local != (deployment.hardware == "cpu"):
            yield Finding(
                "target-hardware",
                "targets",
                f"{target} with hardware={deployment.hardware}: "
                + ("the local stack runs on the CPU." if local else "a cluster of CPU nodes has no model to serve."),
                "Use local with cpu, kubernetes or slurm with a GPU.",
            )


def _parallelism(deployment: Deployment, name: RoleName, role: Role) -> Iterator[Finding]:
    field = f"roles.{name}"
    if role.all2all and not (role.expert_parallel and role.gpus > 1):
        yield Finding(
            "all2all-without-experts",
            f"{field}.all2all",
            f"{role.all2all} moves tokens between experts, and here they are not spread.",
            "Set expert_parallel on more than one GPU, or leave all2all out.",
        )
    if role.data_parallel > 1 and not role.expert_parallel:
        yield Finding(
            "experts-copied",
            f"{field}.expert_parallel",
            f"data_parallel={role.data_parallel} without it puts a copy of all experts on every rank.",
            "Set expert_parallel: true.",
        )
    yield from (_on_nodes if deployment.machine.gpus else _on_cpu)(deployment, name, role)


def _on_cpu(deployment: Deployment, name: RoleName, role: Role) -> Iterator[Finding]:
    field = f"roles.{name}"
    if role.gpus > _CPU_RANKS:
        yield Finding(
            "cpu-parallel",
            field,
            f"a group of {role.gpus} ranks, each a process with all of the engine's code, on this machine.",
            f"Use at most {_CPU_RANKS}: tensor_parallel times data_parallel.",
        )
    if role.all2all not in (None, "allgather_reducescatter"):
        yield Finding(
            "all2all-on-cpu",
            f"{field}.all2all",
            f"{role.all2all} is for GPUs, and vLLM would take another way on the CPU.",
            "Use allgather_reducescatter, or leave all2all out.",
        )


def _on_nodes(deployment: Deployment, name: RoleName, role: Role) -> Iterator[Finding]:
    field, per_node = f"roles.{name}", deployment.machine.gpus
    if role.tensor_parallel > per_node:
        yield Finding(
            "tensor-across-nodes",
            f"{field}.tensor_parallel",
            f"{role.tensor_parallel} GPUs share each layer, but a node has {per_node}.",
            f"Use at most {per_node}, and data_parallel for more GPUs.",
        )
    elif role.gpus > per_node and role.gpus % per_node:
        yield Finding(
            "uneven-nodes",
            field,
            f"a group of {role.gpus} GPUs does not fill nodes of {per_node}.",
            f"Use a multiple of {per_node} GPUs, or at most {per_node}.",
        )
    if _HEADS % role.tensor_parallel:
        yield Finding(
            "heads",
            f"{field}.tensor_parallel",
            f"{role.tensor_parallel} does not divide the model's {_HEADS} attention heads.",
            "Use 1, 2, 4 or 8.",
        )
    if deployment.nodes(name) > deployment.machine.nvlink_nodes and (role.all2all or "").startswith("flashinfer"):
        yield Finding(
            "all2all-fabric",
            f"{field}.all2all",
            f"{role.all2all} needs NVLink between all GPUs of a group, but it spans {deployment.nodes(name)} nodes of "
            f"{deployment.hardware}.",
            "Use deepep_high_throughput, or a group within one NVLink domain.",
        )


def _memory(deployment: Deployment, name: RoleName, role: Role) -> Iterator[Finding]:
    stored = deployment.model.weights
    if stored is None:
        yield Finding(
            "weights-unknown",
            "model.weights",
            "whether the weights fit cannot be told without how they are stored.",
            "Set bf16, fp8 or nvfp4.",
        )
        return
    experts = (WEIGHT_BYTES[stored] - DENSE_BYTES[stored]) / role.gpus
    weights = DENSE_BYTES[stored] / role.tensor_parallel + experts
    if not role.expert_parallel:
        weights = WEIGHT_BYTES[stored] / role.tensor_parallel
    room = deployment.machine.gpu_bytes * (role.gpu_memory or deployment.engine.gpu_memory)
    if weights > 0.95 * room:
        yield Finding(
            "weights-do-not-fit",
            f"roles.{name}",
            f"{weights / 1e9:.0f} GB of {stored} weights a GPU, of {room / 1e9:.0f} GB for vLLM on "
            f"{deployment.hardware}: nothing is left for KV.",
            "Use more GPUs a group, larger GPUs, or a smaller checkpoint.",
        )
