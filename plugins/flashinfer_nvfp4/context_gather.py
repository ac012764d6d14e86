"""The cached context of a dense prefill, read from NVFP4 rows.

Short prompts prefill with ordinary attention, also in sparse models. What of a prompt is cached already, from a prefix
hit or an earlier chunk, vLLM gathers out of the cache first, through one function with the cache dtype as a string;
its CUDA code knows ``auto`` and the ``fp8`` kinds, and ends the engine at ``nvfp4_ds_mla``. `around_gather` wraps that
function. So all its callers are served, those of other backends that read the rows too, with and without decode
context parallelism, where each rank gathers its own part before the parts are exchanged.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from flashinfer_nvfp4.codec import decode_rows
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.settings import CACHE_DTYPE
from flashinfer_nvfp4.tensors import text

__all__ = ["activate", "around_gather", "context_slots", "gather_context"]

_INTEGERS = (torch.int32, torch.int64)


def activate() -> None:
    """Let vLLM gather contexts out of NVFP4 rows, from now on and in this process; harmless when repeated."""
    from flashinfer_nvfp4.patches import CONTEXT, REGISTER

    REGISTER.apply(CONTEXT)


def around_gather(original: Any) -> Any:
    """vLLM's ``gather_and_maybe_dequant_cache`` that also takes ``nvfp4_ds_mla``; every other dtype goes through."""

    @functools.wraps(original)
    def gather_and_maybe_dequant_cache(
        src_cache: torch.Tensor,
        dst: torch.Tensor,
        block_table: torch.Tensor,
        cu_seq_lens: torch.Tensor,
        token_to_seq: torch.Tensor,
        num_tokens: int,
        kv_cache_dtype: str,
        scale: torch.Tensor,
        seq_starts: torch.Tensor | None = None,
    ) -> None:
        if kv_cache_dtype == CACHE_DTYPE:
            return gather_context(src_cache, dst, block_table, cu_seq_lens, num_tokens, seq_starts)
        return original(
            src_cache, dst, block_table, cu_seq_lens, token_to_seq, num_tokens, kv_cache_dtype, scale, seq_starts
        )

    return gather_and_maybe_dequant_cache


def gather_context(
    cache: torch.Tensor,
    out: torch.Tensor,
    block_table: torch.Tensor,
    starts: torch.Tensor,
    rows: int,
    first: torch.Tensor | None,
) -> None:
    """Write the latent and RoPE parts of ``rows`` cached tokens into the first rows of ``out`` [.., 576].

    ``cache`` [blocks, block size, 352], one byte an element; ``block_table`` int32 [requests, blocks]; ``starts``
    [requests + 1]: where each request's tokens begin in ``out``; ``first`` [requests]: position of its first one, 0
    without it. bfloat16 holds every row exactly; float16 does too up to 65504, and float32. On a GPU the rows go
    through the Triton kernel, on a CPU through the codec. Raises `LaunchRefused`.
    """
    if cache.element_size() != 1 or out.ndim != 2 or out.shape[1] != LATENT + ROPE or rows > out.shape[0]:
        raise LaunchRefused(
            f"cache {text(cache)}, out {text(out)}, {rows} rows",
            "the context cannot be gathered so",
            f"a cache of bytes, out [{rows} or more, {LATENT + ROPE}]",
            "This is vLLM's own workspace: the model has another geometry, or vLLM changed",
        )
    cache, target = cache.view(torch.uint8), out[:rows]
    slots = context_slots(block_table, starts, rows, cache.shape[1], first)
    if cache.device.type == "cpu":
        target.copy_(_decoded(cache, slots))
        return
    from flashinfer_nvfp4.kernels.gather import gather

    if out.dtype == torch.bfloat16 and out.is_contiguous():
        gather(cache, slots, out=target)
    else:
        target.copy_(gather(cache, slots))


def _decoded(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Float32 [rows, 576] of the rows in ``slots`` by the codec, zeros for slots outside the cache."""
    size = cache.shape[1]
    known = (slots >= 0) & (slots < cache.shape[0] * size)
    values = torch.zeros((slots.shape[0], LATENT + ROPE))
    if known.any():
        inside = slots[known]
        values[known] = torch.cat(decode_rows(cache[inside // size, inside % size]), -1)
    return values


def context_slots(
    block_table: torch.Tensor, starts: torch.Tensor, rows: int, block_size: int, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Slots, int64 [rows], of the tokens of several requests one after another, for `gather`; no host waits for them.

    ``block_table`` [requests, blocks] int32 or int64: the blocks of each request; ``starts`` [requests + 1]: where
    each request's tokens begin in the result, so token i of request r is row ``starts[r] + i``; ``first`` [requests]:
    the position in the request of its first token, 0 if left out. Rows beyond ``starts[-1]``, positions beyond the
    table and negative blocks give -1. Raises `LaunchRefused` for shapes that do not fit each other, and for other
    dtypes.
    """
    requests, blocks = block_table.shape if block_table.ndim == 2 else (-1, -1)
    tables = [block_table, starts] if first is None else [block_table, starts, first]
    shaped = starts.shape == (requests + 1,) and (first is None or first.shape == (requests,))
    if not shaped or any(table.dtype not in _INTEGERS for table in tables) or block_size < 1 or rows < 0:
        raise LaunchRefused(
            f"block_table {text(block_table)}, starts {text(starts)}, rows={rows}, block_size={block_size}",
            "they do not describe the same requests",
            "block_table [requests, blocks], starts [requests + 1], first [requests], each int32 or int64, 0 rows or "
            "more and a positive block_size",
            "Pass the tables of one batch",
        )
    row = torch.arange(rows, device=block_table.device)
    if not requests or not blocks:
        return torch.full_like(row, -1)
    starts = starts.long()
    request = torch.searchsorted(starts[1:].contiguous(), row, right=True)
    inside = (request < requests) & (row >= starts[0])
    request = request.clamp(max=requests - 1)
    position = row - starts[request] + (0 if first is None else first.long()[request])
    column = position.clamp(min=0) // block_size
    block = block_table[request, column.clamp(max=blocks - 1)].long()
    inside &= (position >= 0) & (column < blocks) & (block >= 0)
    return torch.where(inside, block * block_size + position % block_size, -1)
