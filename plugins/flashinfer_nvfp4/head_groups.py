"""Heads for a kernel that has a fixed number of them a token: more become further tokens, fewer are padded."""

from __future__ import annotations

import torch

__all__ = ["grouped", "ungrouped"]


def grouped(query: torch.Tensor, indices: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query [tokens * groups, group, width] and indices [tokens * groups, topk], contiguous.

    ``query`` [tokens, heads, width]; ``indices`` [tokens, topk]; ``group``: heads of the kernel.
    Padded heads are zeros.
    """
    tokens, heads, width = query.shape
    groups = -(-heads // group)
    if heads % group:
        padded = query.new_zeros((tokens, groups * group, width))
        padded[:, :heads] = query
        query = padded
    indices = indices.repeat_interleave(groups, 0) if groups > 1 else indices.contiguous()
    return query.reshape(tokens * groups, group, width).contiguous(), indices


def ungrouped(out: torch.Tensor, heads: int) -> torch.Tensor:
    """Output [tokens, heads, width], contiguous, of [tokens * groups, group, width] as `grouped` has ordered it."""
    launched, group, width = out.shape
    groups = -(-heads // group)
    return out.view(launched // groups, groups * group, width)[:, :heads].contiguous()
