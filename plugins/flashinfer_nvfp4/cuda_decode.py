"""Sparse MLA decode on rows as they lie in the cache, by the CUDA kernel.

A cluster of thread blocks attends for 16 heads of one token; the blocks share its keys and merge what they found
through one another's shared memory. On 12.0, without clusters, a second kernel merges it through global memory. The
host looks at no values, so a launch can be captured in a CUDA graph once the module is built, which the first call on
a device does.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, overload

import torch

from flashinfer_nvfp4.cuda_arch import HEADS, PART_BYTES, Architecture
from flashinfer_nvfp4.cuda_arguments import cache_view, check_device, check_last, check_out
from flashinfer_nvfp4.cuda_build import load
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.plan import CLUSTER_SIZES, MAX_SPLITS, STAGE_KEYS, plan_clusters, plan_splits
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["MAX_HEADS", "decode"]

MAX_HEADS = 128
MAX_BLOCKS = 2**31 - 1
"""Thread blocks of a grid in its first dimension."""
LEAST_STAGES = 3
"""Stages of a block that fill the pipeline once; fewer are planned only where a token has no more."""


@overload
def decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    lse: Literal[False] = False,
    num_ctas: int | None = None,
    out: torch.Tensor | None = None,
    out_scale: float = 1.0,
) -> torch.Tensor: ...


@overload
def decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    lse: Literal[True],
    num_ctas: int | None = None,
    out: torch.Tensor | None = None,
    out_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    lse: bool = False,
    num_ctas: int | None = None,
    out: torch.Tensor | None = None,
    out_scale: float = 1.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention output, bfloat16 [tokens, heads, 512]; with ``lse`` also the log-sum-exp, float32 [tokens, heads].

    ``query`` [tokens, heads, 576]: absorbed latent part before rotated part, float8_e4m3fn or bfloat16, 1 to 128
    heads; 16 of them share the reads of a row. ``cache``: uint8 [blocks, block size, 352], blocks at any aligned
    distance, or [rows, 352]. ``indices`` int32 [tokens, topk], topk a multiple of 32: rows to attend to, counted over
    the blocks, in any order; one that is named twice counts twice; -1 and everything else outside the cache is empty,
    and nothing is read for it. ``scale`` multiplies ``query @ key``; an FP8 query's own scale goes into it.
    ``num_ctas``: thread blocks of a token and 16 heads, 1 to 8, without clusters (12.0) to 16; planned if left out.
    ``out``: where the output goes, contiguous; ``out_scale`` multiplies it, not the log-sum-exp.

    The log-sum-exp is the natural logarithm of the sum of ``exp(scale * query @ key)``. A token without any key has
    zeros and minus infinity. Raises `LaunchRefused`, and `BuildRefused` where the kernel cannot be built.
    """
    check_tensor("query", query, (torch.float8_e4m3fn, torch.bfloat16), (None, None, LATENT + ROPE))
    tokens, heads, _ = query.shape
    check_tensor("indices", indices, (torch.int32,), (tokens, None))
    blocks = cache_view(cache)
    topk = indices.shape[1]
    most = MAX_BLOCKS // MAX_SPLITS
    shaped = 1 <= heads <= MAX_HEADS and topk >= 1 and topk % STAGE_KEYS == 0 and tokens <= most
    finite = math.isfinite(scale) and math.isfinite(out_scale)
    if not shaped or not finite or not (num_ctas is None or 1 <= num_ctas <= MAX_SPLITS):
        raise LaunchRefused(
            f"tokens={tokens}, heads={heads}, topk={topk}, scale={scale}, out_scale={out_scale}, num_ctas={num_ctas}",
            "no launch fits",
            f"up to {most} tokens, 1 to {MAX_HEADS} heads, a positive multiple of {STAGE_KEYS} keys, finite scales, "
            f"1 to {CLUSTER_SIZES[-1]} thread blocks a token, without clusters to {MAX_SPLITS}",
            "Pad the indices with -1; launch more heads in parts",
        )
    check_last("query", query)
    check_last("indices", indices, indices.element_size())
    if out is not None:
        check_out(out, (tokens, heads, LATENT))
    arch = check_device(query=query, cache=cache, indices=indices, **({} if out is None else {"out": out}))
    check_ctas(num_ctas, arch)
    if out is None:
        out = query.new_empty((tokens, heads, LATENT), dtype=torch.bfloat16)
    sums = query.new_empty((tokens, heads), dtype=torch.float32) if lse else None
    if tokens:
        with torch.cuda.device(query.device):
            groups = -(-heads // HEADS)
            ctas = num_ctas or plan_ctas(tokens * groups, topk, capacity(arch, torch.cuda.current_device()), arch)
            parts = 0 if arch.clusters or ctas == 1 else tokens * groups * ctas
            workspace = query.new_empty(parts * PART_BYTES, dtype=torch.uint8) if parts else None
            load(arch).decode(query, blocks, indices, out, sums, workspace, scale / math.log(2), out_scale, ctas)
    return out if sums is None else (out, sums)


def check_ctas(num_ctas: int | None, arch: Architecture) -> None:
    """Refuse more thread blocks than a cluster of the architecture has."""
    if num_ctas is not None and num_ctas > arch.most_ctas:
        raise LaunchRefused(
            f"num_ctas={num_ctas} on {arch.name}",
            "a cluster with so many thread blocks cannot be launched",
            f"1 to {arch.most_ctas}",
            "Leave num_ctas out",
        )


def plan_ctas(clusters: int, topk: int, at_once: dict[int, int], arch: Architecture) -> int:
    """Thread blocks for each of ``clusters`` (tokens times groups of heads), of which a device runs ``at_once`` by
    size."""
    if not arch.clusters:
        return plan_splits(clusters, topk, at_once[1])
    stages = topk // STAGE_KEYS
    return plan_clusters(clusters, topk, at_once, (min(LEAST_STAGES, stages), stages))


@functools.cache
def capacity(arch: Architecture, device: int) -> dict[int, int]:
    """Clusters that ``device``, which is the current one, runs at once, by their size."""
    module = load(arch)
    sizes = CLUSTER_SIZES if arch.clusters else (1,)
    return {size: found for size in sizes if (found := int(module.capacity(size))) > 0}
