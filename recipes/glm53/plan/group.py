"""What one group of a recipe's role holds of KV: memory of its GPUs, less the weights as its shape spreads them."""

from __future__ import annotations

from dataclasses import dataclass

from glm53.deployment import Deployment
from glm53.deployment.facts import DENSE_BYTES, WEIGHT_BYTES
from glm53.deployment.roles import Role
from glm53.model.shape import Shape
from glm53.plan.capacity import GIB, plan_capacity
from vllm_blhnc.plan import BLOCK_SIZE, Caches, PlanError

__all__ = ["EXCHANGE", "RUNTIME", "GroupKv", "glm53_caches", "group_kv", "prefix_ratio", "tensor_parallel"]

#: Bytes of one GPU for activations, CUDA graphs and NCCL, and with data parallelism for tokens of all ranks: what
#: `glm53 plan tier` takes, too.
RUNTIME, EXCHANGE = 6 * GIB, 8 * GIB


@dataclass(frozen=True)
class GroupKv:
    """KV of one group.

    ranks: caches that hold tokens of their own, one a data-parallel rank. gpus: of the group. weights: bytes on each
    GPU. pool: bytes for KV on each. block_bytes, block_size: of one block, in bytes and tokens. blocks: a rank's.
    """

    ranks: int
    gpus: int
    weights: int
    pool: int
    block_bytes: int
    block_size: int
    blocks: int

    @property
    def rank_tokens(self) -> int:
        return self.blocks * self.block_size

    @property
    def tokens(self) -> int:
        return self.ranks * self.rank_tokens


def glm53_caches(deployment: Deployment) -> Caches:
    """GLM-5.3's caches: 78 layers, 21 of them with an indexer, and its prediction layer where the recipe drafts."""
    return Caches.of(Shape(layers=78, mtp=True).config(), 1 if deployment.engine.mtp_depth else 0)


def tensor_parallel(role: Role) -> Role:
    """The same GPUs as one tensor-parallel group whose experts stay spread: TEP8 for DEP8."""
    return role.model_copy(update={"tensor_parallel": role.gpus, "data_parallel": 1})


def prefix_ratio(deployment: Deployment, role: Role, dense: int | None = None) -> float:
    """How many times the tokens of a tensor-parallel group the role's group holds on as many GPUs; see `group_kv`."""
    return group_kv(deployment, role, dense).tokens / group_kv(deployment, tensor_parallel(role), dense).tokens


def group_kv(deployment: Deployment, role: Role, dense: int | None = None) -> GroupKv:
    """The KV of one group of this role; raises `PlanError` where there is no GPU, or no room.

    An MLA cache is whole on every tensor-parallel rank, so a rank holds what one of its GPUs holds.
    dense: bytes of the weights outside the experts; None takes those of the recipe's checkpoint.
    """
    stored = deployment.model.weights
    if not deployment.machine.gpus or stored is None:
        raise PlanError(
            f"hardware={deployment.hardware} model.weights={stored}: memory for KV follows from a GPU's memory and the "
            "model's weights. Give a recipe for GPUs, such as recipes/glm53-gb200-nvl72.yaml."
        )
    experts = WEIGHT_BYTES[stored] - DENSE_BYTES[stored]
    dense = DENSE_BYTES[stored] if dense is None else dense
    spread = role.gpus if role.expert_parallel else role.tensor_parallel
    weights = dense // role.tensor_parallel + experts // spread
    room = int(deployment.machine.gpu_bytes * (role.gpu_memory or deployment.engine.gpu_memory))
    pool = room - weights - RUNTIME - (EXCHANGE if role.data_parallel > 1 else 0)
    if pool <= 0:
        raise PlanError(
            f"{room / GIB:.1f} GiB of a GPU for vLLM, {weights / GIB:.1f} GiB of them weights of a rank with "
            f"tensor_parallel={role.tensor_parallel} data_parallel={role.data_parallel}: nothing is left for KV. Use "
            "more GPUs a group, larger ones, or a smaller checkpoint."
        )
    capacity = plan_capacity(
        glm53_caches(deployment),
        pool=pool,
        workspace=0,
        dtype=deployment.engine.kv_cache_dtype,
        layout="BLHNC" if deployment.kv_transfer.layout == "BLHNC" else "LBNHC",
        release=deployment.versions.vllm_line,
    )
    return GroupKv(
        ranks=role.data_parallel,
        gpus=role.gpus,
        weights=weights,
        pool=pool,
        block_bytes=capacity.block_bytes,
        block_size=BLOCK_SIZE,
        blocks=capacity.blocks,
    )
