"""Weights that vLLM loads again into a running engine, folded on their way as the first ones were.

A layer keeps the exponent of its first load, whatever weights follow: any is exact, and rows, peers and stores go on
agreeing about what a row means. So each tensor that arrives can be folded by itself.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.exponents import scaled
from flashinfer_nvfp4.fold import folds_of
from flashinfer_nvfp4.settings import FOLD

__all__ = ["fold_incoming", "follow_reloads", "refuse_processed", "require_reloads"]

FOLLOWED = ("nccl", "ipc")
"""vLLM's weight transfers that load through a model's own loaders, module by module."""
_CARRIED: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, int]] = weakref.WeakKeyDictionary()
"""By module, the exponents that its parameters carry, by name."""


def require_reloads(transfer: str | None) -> None:
    """Raise `FoldRefused` for a ``--weight-transfer-config`` backend whose weights would not be folded."""
    if transfer is not None and transfer not in FOLLOWED:
        raise FoldRefused(
            f"weight_transfer_config with backend={transfer!r}",
            "it writes weights past the loader, so that they would not be folded as the cached rows are",
            f"{' and '.join(FOLLOWED)}, or no weight transfer",
            "Transfer weights by one of these",
        )


def follow_reloads(model: torch.nn.Module) -> None:
    """Let `fold_incoming` know the tensors of a model that has just been folded."""
    for name, exponent in folds_of(model).carried.items():
        module, _, parameter = name.rpartition(".")
        _CARRIED.setdefault(model.get_submodule(module), {})[parameter] = exponent


def fold_incoming(module: torch.nn.Module, loads: list[tuple[str, Any]]) -> None:
    """Multiply the tensors that a reload has received for a module by the powers of two that its parameters carry.

    ``loads``: parameter names, and the bound arguments of their loaders, in which the tensors are replaced. Raises
    `FoldRefused` for a tensor that cannot be multiplied exactly.
    """
    carried = _CARRIED.get(module, {})
    for parameter, call in loads:
        if exponent := carried.get(parameter, 0):
            name = f"{parameter} of {type(module).__name__}, loaded again,"
            call.arguments["loaded_weight"] = scaled(name, call.arguments["loaded_weight"], exponent)


def refuse_processed(model: torch.nn.Module) -> None:
    """Raise `FoldRefused` if ``model`` is folded: vLLM is about to copy the first of its weights in as it is."""
    if any(folds_of(model).exponents.values()):
        raise FoldRefused(
            "weights in kernel format (is_checkpoint_format=False) for a model with folded latents",
            "they are copied as they are, and nobody can tell whether they were folded; none was copied",
            "weights in checkpoint format, which are folded as they arrive",
            f"Reload with is_checkpoint_format=True, or start all workers with {FOLD}=off",
        )
