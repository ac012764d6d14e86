"""How many tokens of KV one GPU holds: memory, minus what else lives there, over the bytes of a block."""

from __future__ import annotations

from dataclasses import dataclass

from flashinfer_nvfp4.plan import PREFILL_WORKSPACE_BYTES
from vllm_blhnc.plan import BLOCK_SIZE, RELEASES, BlockRow, Caches, PlanError, plan_transfer

__all__ = ["GIB", "WORKSPACES", "Capacity", "Memory", "plan_capacity", "workspace_bytes"]

GIB = 1 << 30

_LATENT_AND_ROTARY = 576  # values of one MLA row

#: Name -> what a sparse MLA backend keeps aside to prefill from a cache that its kernels cannot read in place.
WORKSPACES = {
    "none": "the backend reads the cache in place",
    "gather-bf16": "vLLM's FLASHMLA_SPARSE: bf16 rows for 5 x max-model-len tokens, 2 x above 262,144",
    "gather-fp8": "the vLLM fork that gathers NVFP4 rows for TRTLLM-gen: FP8 rows for 5 x max-model-len tokens",
    "flashinfer_nvfp4": "this bundle's backend for NVFP4 rows, at any length: what it stages in unless told otherwise",
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
    block_size: int
    block_bytes: int
    blocks: int
    tokens: int
    indexer_share: float

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / self.block_size

    @property
    def padding(self) -> float:
        """Bytes that carry no KV, as a fraction of those that do."""
        return self.block_bytes / (self.row.payload * self.block_size // BLOCK_SIZE) - 1


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
    if name == "flashinfer_nvfp4":
        return PREFILL_WORKSPACE_BYTES
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
    block_size: int = BLOCK_SIZE,
    release: str = RELEASES[-1],
) -> Capacity:
    """Divide a pool of bytes into blocks.

    pool: bytes for KV and workspace together. block_size: vLLM's ``--block-size``, in tokens. release: vLLM release.
    An MLA cache is whole on every tensor-parallel rank, so a group holds what one of its GPUs holds.
    Raises `PlanError` for what cannot be.
    """
    if layout not in ("BLHNC", "LBNHC"):
        raise PlanError(f"layout={layout!r} is not known; allowed are BLHNC and LBNHC. Choose one of them.")
    if block_size < 1 or block_size % BLOCK_SIZE or (layout == "BLHNC" and block_size != BLOCK_SIZE):
        allowed = f"{BLOCK_SIZE} with BLHNC, where blocks of other caches lie between, and multiples of it with LBNHC"
        raise PlanError(
            f"block_size={block_size}: the sparse indexer's kernels read pages of {BLOCK_SIZE} tokens. Allowed are "
            f"{allowed}. Plan and serve with one of these."
        )
    row = plan_transfer(caches, tokens=1, run_length=None, release=release, dtype=dtype).row
    payload = row.payload * (block_size // BLOCK_SIZE)
    # vLLM 0.31 sizes the default layout's blocks as if they were rows, though nothing lies in the padding then.
    padded = layout == "BLHNC" or release == "0.31"
    block_bytes = -(-payload // row.alignment) * row.alignment if padded else payload
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
        block_size=block_size,
        block_bytes=block_bytes,
        blocks=blocks,
        tokens=blocks * block_size,
        indexer_share=caches.indexers * caches.index_row_bytes * BLOCK_SIZE / row.payload,
    )
