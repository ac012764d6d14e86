"""Multiplying tensors by a power of two without losing a bit, and knowing a tensor again by its bits."""

from __future__ import annotations

import torch

from flashinfer_nvfp4.errors import FoldRefused

__all__ = ["PLAIN", "checksum", "scale_exactly", "scaled"]

PLAIN = (torch.bfloat16, torch.float16, torch.float32)
E8M0_NAN = 0xFF

_CHUNK = 1 << 20
_MULTIPLIER = 0x1E3779B97F4A7C15
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def scaled(name: str, tensor: torch.Tensor, exponent: int) -> torch.Tensor:
    """``tensor * 2**exponent`` in the same dtype: a new tensor, or ``tensor`` itself for exponent 0.

    ``tensor``: bfloat16, float16, float32, or float8_e8m0fnu, whose codes are exponents; vLLM also keeps these codes
    as uint8. Raises `FoldRefused`, naming
    ``name``, for another dtype and if a value would overflow or lose bits to underflow.
    """
    if exponent == 0:
        return tensor
    if tensor.dtype in (torch.float8_e8m0fnu, torch.uint8):
        raw = tensor.view(torch.uint8).short()
        codes = raw + exponent
        exact = bool(((raw != E8M0_NAN) & (codes >= 0) & (codes < E8M0_NAN)).all())
        result = codes.to(torch.uint8).view(tensor.dtype)
    elif tensor.dtype in PLAIN:
        wide = tensor.float()
        result = (wide * 2.0**exponent).to(tensor.dtype)
        exact = bool(result.isfinite().all()) and torch.equal(result.float() * 2.0**-exponent, wide)
    else:
        raise FoldRefused(
            f"{name} of {tensor.dtype}",
            f"its codes cannot be multiplied by 2**{exponent}",
            "bfloat16, float16, float32 and float8_e8m0fnu (or its codes as uint8), of weights or of their scales",
            "Leave this model unfolded, or load the weight in another form",
        )
    if not exact:
        raise FoldRefused(
            f"{name} of {tensor.dtype} times 2**{exponent}",
            "a value would leave the range of the dtype, so outputs would change",
            "exponents that keep every bit",
            "Pass exponents without this layer, which leaves it unfolded",
        )
    return result


@torch.no_grad()
def scale_exactly(name: str, tensor: torch.Tensor, exponent: int) -> None:
    """`scaled`, in place."""
    if exponent:
        tensor.detach().copy_(scaled(name, tensor, exponent))


def checksum(tensor: torch.Tensor) -> int:
    """64 bits that depend on every element's bits and place; equal on every device."""
    bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    places = torch.arange(1, min(_CHUNK, bits.numel()) + 1, device=bits.device) * _MULTIPLIER | 1
    total = bits.numel()
    for chunk in bits.split(_CHUNK):
        total = (total * _MULTIPLIER + int((chunk.long() * places[: len(chunk)]).sum())) % 2**64
    return total
