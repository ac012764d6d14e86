"""What a launch of the CUDA kernels checks on the host, from shapes and addresses alone: values stay on the device."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.cuda_arch import Architecture, architecture_for
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.tensors import ALIGNMENT, check_cache, check_tensor

__all__ = ["ALIGNMENT", "cache_view", "check_device", "check_last", "check_out"]

MOST_ROWS = 2**31 - 1


def cache_view(cache: torch.Tensor) -> torch.Tensor:
    """``cache`` as blocks of rows: uint8 [blocks, block size, 352], blocks at any distance, or [rows, 352].

    Raises `LaunchRefused` for anything else, for blocks that overlap, and for rows at odd addresses.
    """
    view = cache.unsqueeze(1) if cache.ndim == 2 else cache
    check_cache(view)
    blocks, size, _ = view.shape
    if blocks * size > MOST_ROWS:
        raise LaunchRefused(
            f"cache of {blocks * size} rows",
            "a row is named by 32 bits",
            f"up to {MOST_ROWS} rows",
            "Pass a part of the cache",
        )
    return view


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


def check_out(out: torch.Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse an output that is not bfloat16 of this shape, contiguous, at a multiple of 16 bytes."""
    check_tensor("out", out, (torch.bfloat16,), shape)
    if not out.is_contiguous():
        raise LaunchRefused(
            f"out with strides {list(out.stride())}", "it is written as a whole", "a contiguous tensor", "Leave it out"
        )
    check_last("out", out)


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
