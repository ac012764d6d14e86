"""FP8 values with one power-of-two scale a group, the number format of the DSA indexer."""

from __future__ import annotations

import torch

__all__ = ["FP8", "KEY_FLOOR", "quantize_groups", "quantize_rows"]

FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(FP8).max

KEY_FLOOR = 1e-4
"""Least absolute maximum that vLLM's cache writer assumes of an indexer key, so that zeros get a scale."""


def quantize_rows(x: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of ``x`` [..., n] to FP8 e4m3 with a scale that is a power of two (UE8M0).

    Returns the values [..., n] in FP8 and the scales [..., 1] in float32; value times scale approximates x.
    """
    x = x.float()
    amax = x.abs().amax(-1, keepdim=True).clamp(min=floor)
    scale = torch.exp2(torch.ceil(torch.log2(amax * (1.0 / _FP8_MAX))))
    return (x / scale).clamp(-_FP8_MAX, _FP8_MAX).to(FP8), scale


def quantize_groups(
    x: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    *,
    use_ue8m0: bool | None = None,
    column_major_scales: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """vLLM's function of the same arguments, as the indexer calls it for its queries.

    Returns ``x`` [..., n] in FP8 and its scales [..., n / group_size] in float32. Raises NotImplementedError
    for scales that are no powers of two or that are laid out column by column.
    """
    if not use_ue8m0 or column_major_scales:
        raise NotImplementedError(
            f"use_ue8m0={use_ue8m0}, column_major_scales={column_major_scales}: on the CPU, FP8 groups are "
            "made for the DSA indexer only, which asks for power-of-two scales in rows. Load an unquantized "
            "model."
        )
    values, scales = quantize_rows(x.unflatten(-1, (-1, group_size)), floor=eps)
    return values.flatten(-2), scales.squeeze(-1)
