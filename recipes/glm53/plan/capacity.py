"""How many tokens of KV one GPU holds: memory, minus what else lives there, over the bytes of a block."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_blhnc.plan import BLOCK_SIZE, RELEASES, BlockRow, Caches, PlanError, plan_transfer

__all__ = ["GIB", "WORKSPACES", "Capacity", "Memory", "plan_capacity", "workspace_bytes"]

GIB = 1 << 30

_LATENT_AND_ROTARY = 576  # values of one MLA row

#: Name -> what a sparse MLA backend keeps aside to prefill from a cache that its kernels cannot read in place.
WORKSPACES = {
    "none": "the backend reads the cache in place",
    "gather-bf16": "vLLM's FLASHMLA_SPARSE: bf16 rows for 5 x max-model-len tokens, 2 x above 262,144",
    "gather-fp8": "the vLLM fork that gathers NVFP4 rows for TRTLLM-gen: FP8 rows for 5 x max-model-len tokens",
}


@dataclass(frozen=True)
class Memory:
    """What one GPU has for KV, in bytes.

    hbm: memory of the GPU. utilization: fraction of it that vLLM may use, ``--gpu-memory-utilization``.
    weights: of the whole model, spread evenly over `tp` GPUs. runtime: activations, CUDA graphs, NCCL.
    """

    hbm: int
    utilization: float
    weights: int
    tp: int
    runtime: int

    @property
    def pool(self) -> int:
        """Bytes left for KV and for the prefill workspace."""
        return int(self.hbm * self.utilization) - self.weights // self.tp - self.runtime


@dataclass(frozen=True)
class Capacity:
    """Tokens one GPU holds with one cache dtype.

    pool, workspace: bytes. row: one block of all caches; `row.nbytes` is what a block takes with BLHNC.
    blocks: whole blocks in the pool; vLLM keeps one of them for itself.
    indexer_share: bytes of indexer caches as a fraction of a block's KV.
    """

    dtype: str
    layout: str
    pool: int
    workspace: int
    row: BlockRow
    block_bytes: int
    blocks: int
    tokens: int
    indexer_share: float

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / BLOCK_SIZE


def workspace_bytes(name: str, max_model_len: int) -> int:
    """Bytes of a workspace of `WORKSPACES`; raises `PlanError` for another name.

    Sources: vLLM's `get_prefill_workspace_size` (backends/mla/flashmla_sparse.py) with the default of
    ``sparse_mla_prefill_workspace_factor`` (config/vllm.py); the fork rounds its rows up to 64.
    """
    if name == "none":
        return 0
    if name == "gather-bf16":
        return (5 if max_model_len <= 256 * 1024 else 2) * max_model_len * _LATENT_AND_ROTARY * 2
    if name == "gather-fp8":
        return -(-5 * max_model_len // 64) * 64 * _LATENT_AND_ROTARY
    raise PlanError(
        f"workspace={name!r} is not known; allowed are {', '.join(WORKSPACES)} or a number of GiB. Choose one of them."
    )


def plan_capacity(
    caches: Caches,
    *,
    pool: int,
    workspace: int,
    dtype: str,
    layout: str = "BLHNC",
    release: str = RELEASES[-1],
) -> Capacity:
    """Divide a pool of bytes into blocks.

    pool: bytes for KV and workspace together. release: vLLM release.
    An MLA cache is whole on every tensor-parallel rank, so a group holds what one of its GPUs holds.
    Raises `PlanError` for what cannot be.
    """
    if layout not in ("BLHNC", "LBNHC"):
        raise PlanError(f"layout={layout!r} is not known; allowed are BLHNC and LBNHC. Choose one of them.")
    row = plan_transfer(caches, tokens=1, run_length=None, release=release, dtype=dtype).row
    block_bytes = row.nbytes if layout == "BLHNC" else row.payload
    blocks = (pool - workspace) // block_bytes
    if blocks < 2:
        raise PlanError(
            f"{(pool - workspace) / GIB:.2f} GiB are left for the KV cache, but two blocks need "
            f"{2 * block_bytes / GIB:.3f} GiB. Use more or larger GPUs, a smaller workspace, or another dtype."
        )
    return Capacity(
        dtype=dtype,
        layout=layout,
        pool=pool,
        workspace=workspace,
        row=row,
        block_bytes=block_bytes,
        blocks=blocks,
        tokens=blocks * BLOCK_SIZE,
        indexer_share=caches.indexers * caches.index_row_bytes * BLOCK_SIZE / row.payload,
    )
