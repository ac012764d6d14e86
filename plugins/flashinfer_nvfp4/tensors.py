"""The check of dtype and shape that every kernel makes on the host, Triton's and CUDA's."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.errors import LaunchRefused

__all__ = ["check_tensor", "text"]


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


def text(tensor: torch.Tensor) -> str:
    """Dtype, shape and device, for messages."""
    return f"{_name(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
