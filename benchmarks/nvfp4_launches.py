"""Kernels that can be timed on the same selected rows, each with its reason where it cannot run. See nvfp4_gpu.py.

- ``cuda``, ``triton``: this plugin's kernels, FP8 query;
- ``flashinfer``: `flashinfer.mla.nvfp4_sparse_mla_decode`, the same rows, where its sources are installed;
- ``flashmla``: FlashMLA through vLLM, the same rows, BF16 query, 16 heads padded to 64 (compute capability 10.x);
- ``flashmla-fp8``: the same kernel on rows of 656 bytes, which is what an FP8 cache is on compute capability 9.0;
- ``trtllm``: FlashInfer's TRTLLM-gen kernel on an FP8 cache of 576 bytes a row (compute capability 10.x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashinfer_nvfp4.codec import decode_rows
from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

__all__ = ["BLOCK", "KERNELS", "OWN", "SCALE", "Launch", "Unavailable", "Work", "tried"]

BLOCK = 64
SCALE = 256**-0.5
OWN = ("cuda", "triton")
TRTLLM_WORKSPACE = 394 << 20
"""What vLLM gives TRTLLM-gen."""


class Unavailable(Exception):
    """Why a kernel cannot run here."""


@dataclass
class Work:
    """query: bfloat16 [tokens, heads, 576]; indices: int32 [tokens, topk]; rows: uint8 [slots, 352], and the keys,
    float32 [slots, 576], that they are."""

    query: Any
    indices: Any
    rows: Any
    keys: Any

    @classmethod
    def of(cls, query: Any, indices: Any, rows: Any) -> Work:
        return cls(query, indices, rows, torch.cat(decode_rows(rows), -1))


@dataclass
class Launch:
    """A kernel ready to be called: its query, the keys it attends to, and the bytes of a row that it reads."""

    call: Callable[[], Any]
    query: Any
    keys: Any
    row_bytes: int = ROW_BYTES

    def error(self, indices: Any, scale: float = SCALE) -> float:
        """Largest difference from float64 attention in percent of a head's largest element, over the first tokens."""
        few = slice(0, 4)
        chosen = self.keys[indices[few].long()].double()
        weights = (torch.einsum("thd,tkd->thk", self.query[few].double(), chosen) * scale).softmax(-1)
        right = torch.einsum("thk,tkd->thd", weights, chosen[..., :LATENT])
        wrong = (self.call()[few].double() - right).abs().amax(-1) / right.abs().amax(-1)
        return float(100 * wrong.max())


def tried(name: str, work: Work) -> Launch:
    """The launch of kernel ``name``, called once.

    Raises `Unavailable` with the reason for whatever keeps it out. Of this plugin's kernels that is a missing package
    or a refused build; anything else that they raise is an error.
    """
    expected = (ImportError, BuildRefused) if name in OWN else Exception  # others have each its own type
    try:
        launch = KERNELS[name](work)
        launch.call()
        if work.query.is_cuda:
            torch.cuda.synchronize()
    except Unavailable:
        raise
    except expected as error:
        raise Unavailable(f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:300]}") from error
    return launch


def _cuda(work: Work) -> Launch:
    from flashinfer_nvfp4.cuda_decode import decode

    query, cache = _fp8(work), work.rows.view(-1, BLOCK, ROW_BYTES)
    return Launch(lambda: decode(query, cache, work.indices, SCALE), query, work.keys)


def _triton(work: Work) -> Launch:
    from flashinfer_nvfp4.kernels.decode import decode

    query, cache = _fp8(work), work.rows.view(-1, BLOCK, ROW_BYTES)
    return Launch(lambda: decode(query, cache, work.indices, SCALE)[0], query, work.keys)


def _flashinfer(work: Work) -> Launch:
    try:
        from flashinfer.mla import nvfp4_sparse_mla_decode as kernel
    except ImportError as error:
        raise Unavailable(f"FlashInfer has no nvfp4_sparse_mla_decode: {error}") from error
    query = _fp8(work)
    return Launch(lambda: kernel(query, work.rows, work.indices, SCALE), query, work.keys)


def _flashmla(work: Work) -> Launch:
    if torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("FlashMLA reads NVFP4 rows on compute capability 10.x only")
    return Launch(_flashmla_call(work, work.rows), work.query, work.keys)


def _flashmla_fp8(work: Work) -> Launch:
    """512 e4m3 codes, the float32 scales of four groups of 128, and 64 bfloat16 elements of RoPE."""
    latent, rope = work.keys.split((LATENT, ROPE), -1)
    groups = latent.unflatten(-1, (4, 128))
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    codes = (groups / scales[..., None]).to(torch.float8_e4m3fn)
    parts = (codes.flatten(1), scales, rope.bfloat16())
    rows = torch.cat([part.contiguous().view(torch.uint8).flatten(1) for part in parts], -1)
    keys = torch.cat(((codes.float() * scales[..., None]).flatten(1), rope.bfloat16().float()), -1)
    return Launch(_flashmla_call(work, rows), work.query, keys, rows.shape[1])


def _flashmla_call(work: Work, rows: Any) -> Callable[[], Any]:
    try:
        from vllm.v1.attention.ops import flashmla as ops
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed: {error}") from error
    supported, why = ops.is_flashmla_sparse_supported()
    if not supported:
        raise Unavailable(str(why))
    tokens, heads, width = work.query.shape
    query = work.query.new_zeros((1, tokens, 64 if heads <= 64 else 128, width))
    query[0, :, :heads] = work.query
    call = {
        "q": query,
        "k_cache": rows.view(-1, BLOCK, 1, rows.shape[1]),
        "block_table": torch.zeros((1, 1), dtype=torch.int32, device=rows.device),
        "head_dim_v": LATENT,
        "cache_seqlens": torch.full((1,), len(rows), dtype=torch.int32, device=rows.device),
        "tile_scheduler_metadata": ops.get_mla_metadata()[0],
        "is_fp8_kvcache": True,
        "indices": work.indices.unsqueeze(0),
        "softmax_scale": SCALE,
    }
    return lambda: ops.flash_mla_with_kvcache(**call)[0][0, :, :heads]


def _trtllm(work: Work) -> Launch:
    if torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("TRTLLM-gen's sparse MLA needs compute capability 10.x")
    from flashinfer_nvfp4.trtllm import TrtllmRows, missing

    if why := missing():
        raise Unavailable(why)
    query, rows = _fp8(work), work.keys.clamp(-448, 448).to(torch.float8_e4m3fn)
    workspace = torch.zeros(TRTLLM_WORKSPACE, dtype=torch.int8, device=rows.device)
    kernel = TrtllmRows(SCALE, 192, workspace)
    counts = torch.full((len(query),), work.indices.shape[1], dtype=torch.int32, device=rows.device)
    call = lambda: kernel(query, rows, work.indices, counts, False)[0]  # noqa: E731
    return Launch(call, query, rows.float(), LATENT + ROPE)


def _fp8(work: Work) -> Any:
    return work.query.to(torch.float8_e4m3fn)


KERNELS: dict[str, Callable[[Work], Launch]] = {
    "cuda": _cuda,
    "triton": _triton,
    "flashinfer": _flashinfer,
    "flashmla": _flashmla,
    "flashmla-fp8": _flashmla_fp8,
    "trtllm": _trtllm,
}
