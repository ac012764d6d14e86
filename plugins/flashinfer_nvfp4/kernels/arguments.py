"""What every launch checks on the host, without looking at values: those stay on the device.

Caches are uint8 [blocks, block size, 352]. Rows follow each other in a block; blocks may be farther apart, as in
BLHNC, where the pages of other layers lie between. A flat view of rows is a cache of blocks of one row.
"""

from __future__ import annotations

import torch
import triton

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.tensors import ALIGNMENT, check_cache

__all__ = ["ALIGNMENT", "check_cache", "check_devices", "check_output", "check_rows", "interpreted"]


def interpreted(kernel: object) -> bool:
    """Whether Triton was imported under ``TRITON_INTERPRET=1``, so that ``kernel`` runs on the CPU."""
    return not isinstance(kernel, triton.JITFunction)


def check_devices(kernel: object, **tensors: torch.Tensor) -> None:
    """Refuse tensors of several devices, and of one that ``kernel`` cannot run on."""
    devices = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(devices.values())) > 1:
        raise LaunchRefused(
            ", ".join(f"{name} on {device}" for name, device in devices.items()),
            "a kernel reaches the memory of one device",
            "all tensors on one device",
            "Move them together",
        )
    device = next(iter(devices.values()))
    if device.type != ("cpu" if interpreted(kernel) else "cuda"):
        raise LaunchRefused(
            f"tensors on {device}, Triton {'interpreting' if interpreted(kernel) else 'compiling'}",
            "compiled kernels run on an NVIDIA GPU, interpreted ones on the CPU",
            "cuda tensors; cpu tensors under TRITON_INTERPRET=1",
            "Move the tensors, or start Python with the other setting of TRITON_INTERPRET",
        )


def check_rows(name: str, tensor: torch.Tensor) -> None:
    """Refuse a last dimension that is not contiguous, and rows that do not begin at aligned addresses."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise LaunchRefused(
            f"{name} with strides {list(tensor.stride())}",
            "its last dimension is read as it lies in memory",
            "a last stride of 1; others as they are",
            f"Pass {name}.contiguous()",
        )
    strides = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1][:-1]
    if tensor.data_ptr() % ALIGNMENT or any(step * tensor.element_size() % ALIGNMENT for step in strides):
        raise LaunchRefused(
            f"{name} at address {tensor.data_ptr():#x} with strides {list(tensor.stride())} of "
            f"{tensor.element_size()} bytes",
            f"it is read {ALIGNMENT} bytes at a time",
            f"multiples of {ALIGNMENT} bytes",
            f"Pass {name}.contiguous(), or begin the slice at an aligned element",
        )


def check_output(name: str, tensor: torch.Tensor) -> None:
    """Refuse an output that is not contiguous."""
    if not tensor.is_contiguous():
        raise LaunchRefused(
            f"{name} with strides {list(tensor.stride())}",
            "it is written as a whole",
            "a contiguous tensor",
            f"Allocate {name} contiguously, or leave it out",
        )
