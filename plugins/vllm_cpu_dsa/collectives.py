"""The two collectives that expert layers need under data parallelism, whose ranks have different numbers of tokens.

Written as methods of vLLM's `DeviceCommunicatorBase`, over gloo. Rows travel as bytes, so every dtype does, and sums
are made in the order of the ranks, so that a token's sum does not depend on where in a batch it stands.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["all_gatherv", "reduce_scatterv"]


def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """The rows of all ranks, in the order of the ranks, on every rank.

    input_: [rows, ...] of any dtype, or a list of such tensors, which gives a list.
    sizes: rows of each rank; None where all have as many as this one.
    Raises NotImplementedError for another ``dim`` than 0, as vLLM's other communicators do, and ValueError for
    sizes that are not those of the group or of ``input_``.
    """
    if dim != 0:
        raise NotImplementedError(
            f"all_gatherv over dim={dim}: vLLM's callers gather rows; allowed is 0. Move the dimension to the front."
        )
    if not isinstance(input_, torch.Tensor):
        return [all_gatherv(self, each, dim, sizes) for each in input_]
    rows = input_.shape[0]
    sizes = _checked(self, [rows] * self.world_size if sizes is None else sizes)
    if sizes[self.rank_in_group] != rows:
        raise ValueError(
            f"all_gatherv of {rows} rows with sizes={sizes} on rank {self.rank_in_group}: the ranks would wait for "
            f"other rows than are sent; allowed are {sizes[self.rank_in_group]}. Pass every rank's own number of rows."
        )
    gathered = input_.new_empty((sum(sizes), *input_.shape[1:]))
    parts = gathered.split(sizes)
    parts[self.rank_in_group].copy_(input_)
    sent = [
        dist.broadcast(_bytes(part), group=self.device_group, group_src=rank, async_op=True)
        for rank, part in enumerate(parts)
        if part.numel()
    ]
    for work in sent:
        work.wait()
    return gathered


def reduce_scatterv(self: Any, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None) -> torch.Tensor:
    """This rank's part of the sum of all ranks' tensors.

    input_: of the same shape on every rank. The parts lie one after another along ``dim``.
    sizes: lengths of the parts; None where they are equal.
    Raises ValueError for sizes that are not those of the group or of ``input_``.
    """
    whole = input_.movedim(dim, 0).contiguous()
    rows = whole.shape[0]
    if sizes is None:
        sizes = [rows // self.world_size] * self.world_size
    sizes = _checked(self, sizes)
    if sum(sizes) != rows:
        raise ValueError(
            f"reduce_scatterv of {rows} rows with sizes={sizes}: the parts are not the whole; allowed are sizes whose "
            f"sum is {rows}, or None if {self.world_size} ranks share the rows equally. Pass each rank's rows."
        )
    own = sizes[self.rank_in_group]
    received = whole.new_empty((self.world_size, own, *whole.shape[1:]))
    row_bytes = whole[:1].numel() * whole.element_size() if rows else 0
    dist.all_to_all_single(
        _bytes(received),
        _bytes(whole),
        [own * row_bytes] * self.world_size,
        [size * row_bytes for size in sizes],
        group=self.device_group,
    )
    total = received[0]
    for part in received[1:]:
        total = total + part
    return total.movedim(0, dim).contiguous()


def _checked(self: Any, sizes: list[int]) -> list[int]:
    if len(sizes) != self.world_size:
        raise ValueError(
            f"sizes={sizes} for a group of {self.world_size} ranks: each rank sends its own number of rows; allowed "
            f"are {self.world_size} sizes. Pass one for each rank of the group."
        )
    return sizes


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory, flat."""
    return tensor.view(-1).view(torch.uint8)
