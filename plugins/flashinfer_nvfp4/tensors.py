"""What every kernel checks of tensors on the host, Triton's and CUDA's: dtype, shape, and how a cache lies."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.rowformat import ROW_BYTES

__all__ = ["ALIGNMENT", "check_cache", "check_tensor", "text"]

ALIGNMENT = 16
"""Bytes of the widest load or copy of a thread."""


def check_tensor(
    name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...]
) -> None:
    """Refuse another dtype, or a shape other than ``shape``, in which None stands for any size."""
    fits = len(shape) == tensor.ndim and all(a in (None, b) for a, b in zip(shape, tensor.shape, strict=True))
    if tensor.dtype not in dtypes or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise LaunchRefused(
            f"{name} {text(tensor)}",
            "the kernel does not take it",
            f"{' or '.join(_name(dtype) for dtype in dtypes)} [{sizes}]",
            "Convert or reshape it; other widths are other model geometries, which this format cannot hold",
        )


def check_cache(cache: torch.Tensor) -> None:
    """Refuse what is no cache, uint8 [blocks, block size, 352] with blocks at any distance, and what has its rows at
    odd addresses."""
    shaped = cache.dtype == torch.uint8 and cache.ndim == 3 and cache.shape[2] == ROW_BYTES and cache.shape[1] > 0
    if not shaped:
        raise LaunchRefused(
            f"cache {text(cache)}",
            "it holds no rows of this format",
            f"uint8 [blocks, block size, {ROW_BYTES}]",
            "View the cache as uint8 and cut off what pads a block; a flat view of rows takes unsqueeze(1)",
        )
    blocks, size, _ = cache.shape
    block, *rest = cache.stride()
    if (size > 1 and rest[0] != ROW_BYTES) or rest[1] != 1 or (blocks > 1 and block < size * ROW_BYTES):
        raise LaunchRefused(
            f"cache with strides {list(cache.stride())}",
            "rows must follow each other in a block, and blocks must not overlap",
            f"strides [{size * ROW_BYTES} or more, {ROW_BYTES}, 1]",
            "Pass one layer's view of the cache with the block dimension first",
        )
    if cache.data_ptr() % ALIGNMENT or (blocks > 1 and block % ALIGNMENT):
        raise LaunchRefused(
            f"cache at address {cache.data_ptr():#x} with blocks {block} bytes apart",
            f"rows are read {ALIGNMENT} bytes at a time",
            f"multiples of {ALIGNMENT} bytes",
            "Align the block rows of the layout",
        )


def text(tensor: torch.Tensor) -> str:
    """Dtype, shape and device, for messages."""
    return f"{_name(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
