"""Rows written into the cache by the CUDA kernel, whose host build writes the same bytes as the codec."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.codec import POLICIES, Policy
from flashinfer_nvfp4.cuda_arguments import cache_view, check_device, check_last
from flashinfer_nvfp4.cuda_build import load
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["encode"]


def encode(
    latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, policy: Policy = "rtn"
) -> None:
    """Write the rows of ``latent`` [tokens, 512] and ``rope`` [tokens, 64] to ``slots`` of ``cache``.

    Both are bfloat16 or both float32, each token's values contiguous. ``cache``: uint8 [blocks, block size, 352] or
    [rows, 352]; ``slots`` contiguous int64 [tokens], each at most once. A token whose slot is -1, or otherwise outside
    the cache, is not written. A block with a NaN is written with a NaN as its scale. Raises `LaunchRefused`, and
    `BuildRefused` where the kernel cannot be built.
    """
    if policy not in POLICIES:
        raise LaunchRefused(f"policy={policy!r}", "no such way to choose scales", ", ".join(POLICIES), "Choose one")
    check_tensor("latent", latent, (torch.bfloat16, torch.float32), (None, LATENT))
    tokens = latent.shape[0]
    check_tensor("rope", rope, (latent.dtype,), (tokens, ROPE))
    check_tensor("slots", slots, (torch.int64,), (tokens,))
    blocks = cache_view(cache)
    check_last("latent", latent, latent.element_size())
    check_last("rope", rope, rope.element_size())
    check_last("slots", slots, slots.element_size())
    arch = check_device(latent=latent, rope=rope, cache=cache, slots=slots)
    if not tokens:
        return
    with torch.cuda.device(cache.device):
        load(arch).encode(latent, rope, slots, blocks, POLICIES.index(policy))
