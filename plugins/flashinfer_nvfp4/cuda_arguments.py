"""What a launch of the CUDA kernels checks on the host, from shapes and addresses alone: values stay on the device."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.cuda_arch import Architecture, architecture_for
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.rowformat import ROW_BYTES
from flashinfer_nvfp4.tensors import text

__all__ = ["ALIGNMENT", "CacheView", "cache_view", "check_device", "check_last"]

ALIGNMENT = 16
"""Bytes of the widest copy of a thread."""
MOST_ROWS = 2**31 - 1

CacheView = tuple[int, int, int, int]
"""Address, bytes between blocks, rows of a block, rows."""


def cache_view(cache: torch.Tensor) -> CacheView:
    """How rows lie in ``cache``: uint8 [blocks, block size, 352], blocks at any distance, or [rows, 352].

    Raises `LaunchRefused` for anything else, for blocks that overlap, and for rows at odd addresses.
    """
    view = cache.unsqueeze(1) if cache.ndim == 2 else cache
    if view.dtype != torch.uint8 or view.ndim != 3 or view.shape[2] != ROW_BYTES or view.shape[1] < 1:
        raise LaunchRefused(
            f"cache {text(cache)}",
            "it holds no rows of this format",
            f"uint8 [blocks, block size, {ROW_BYTES}] or [rows, {ROW_BYTES}]",
            "View the cache as uint8 and cut off what pads a block",
        )
    blocks, size, _ = view.shape
    block, row, byte = view.stride()
    if byte != 1 or (size > 1 and row != ROW_BYTES) or (blocks > 1 and block < size * ROW_BYTES):
        raise LaunchRefused(
            f"cache with strides {list(cache.stride())}",
            "rows must follow each other in a block, and blocks must not overlap",
            f"strides [{size * ROW_BYTES} or more, {ROW_BYTES}, 1]",
            "Pass one layer's view of the cache with the block dimension first",
        )
    if view.data_ptr() % ALIGNMENT or (blocks > 1 and block % ALIGNMENT):
        raise LaunchRefused(
            f"cache at address {view.data_ptr():#x} with blocks {block} bytes apart",
            f"rows are copied {ALIGNMENT} bytes at a time",
            f"multiples of {ALIGNMENT} bytes",
            "Align the block rows of the layout",
        )
    if blocks * size > MOST_ROWS:
        raise LaunchRefused(
            f"cache of {blocks * size} rows",
            "a row is named by 32 bits",
            f"up to {MOST_ROWS} rows",
            "Pass a part of the cache",
        )
    return view.data_ptr(), block, size, blocks * size


def check_last(name: str, tensor: torch.Tensor, alignment: int = ALIGNMENT) -> None:
    """Refuse a last dimension that is not contiguous, and rows not at multiples of ``alignment`` bytes."""
    *outer, last = zip(tensor.stride(), tensor.shape, strict=True)
    if last[1] > 1 and last[0] != 1:
        raise LaunchRefused(
            f"{name} with strides {list(tensor.stride())}",
            "its last dimension is read as it lies in memory",
            "a last stride of 1; others as they are",
            f"Pass {name}.contiguous()",
        )
    item = tensor.element_size()
    if tensor.data_ptr() % alignment or any(size > 1 and step * item % alignment for step, size in outer):
        raise LaunchRefused(
            f"{name} at address {tensor.data_ptr():#x} with strides {list(tensor.stride())} of {item} bytes",
            "threads read several elements at once",
            f"multiples of {alignment} bytes",
            f"Pass {name}.contiguous(), or begin the slice at an aligned element",
        )


def check_device(**tensors: torch.Tensor) -> Architecture:
    """The architecture of the one GPU that holds the tensors.

    Raises `LaunchRefused` for several devices and for one that is no GPU, and `BuildRefused` for a GPU without kernels.
    """
    devices = {name: tensor.device for name, tensor in tensors.items()}
    device = next(iter(devices.values()))
    if device.type != "cuda" or len(set(devices.values())) > 1:
        raise LaunchRefused(
            ", ".join(f"{name} on {where}" for name, where in devices.items()),
            "a kernel runs on a GPU and reaches that GPU's memory",
            "all tensors on one cuda device",
            "Move them together; on a CPU, flashinfer_nvfp4.codec reads and writes rows",
        )
    return architecture_for(torch.cuda.get_device_capability(device))
