"""Weights that vLLM loads again into a running engine, folded on their way as the first ones were.

A layer keeps the exponent of its first load, whatever weights follow: any is exact, and rows, peers and stores go on
agreeing about what a row means. So each tensor that arrives can be folded by itself.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.exponents import checksum, scaled
from flashinfer_nvfp4.fold import folds_of
from flashinfer_nvfp4.fold_tensors import NORM
from flashinfer_nvfp4.settings import FOLD

__all__ = ["fold_incoming", "follow_reloads", "refuse_processed", "require_followed", "require_reloads", "settle"]

FOLLOWED = ("nccl", "ipc")
"""vLLM's weight transfers that load through a model's own loaders, module by module."""
_CARRIED: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, int]] = weakref.WeakKeyDictionary()
"""By module, the exponents that its parameters carry, by name."""
_NORMS: weakref.WeakKeyDictionary[torch.nn.Module, torch.nn.Module] = weakref.WeakKeyDictionary()
"""By projection, the norm in front of it."""
_SETTLED: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
"""By norm, the checksum of the weight that was folded last."""


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
    """Let `fold_incoming` and `require_followed` know the tensors of a model that has just been folded."""
    for name, exponent in folds_of(model).carried.items():
        path, _, parameter = name.rpartition(".")
        module = model.get_submodule(path)
        _CARRIED.setdefault(module, {})[parameter] = exponent
        if match := NORM.fullmatch(name):
            _NORMS[model.get_submodule(f"{match['layer']}kv_b_proj")] = module
            _SETTLED[module] = checksum(model.get_parameter(name))


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


def settle(module: torch.nn.Module) -> None:
    """Remember what a module holds once a reload has folded and placed it."""
    if module in _SETTLED:
        _SETTLED[module] = checksum(module.get_parameter("weight"))


def require_followed(projection: torch.nn.Module) -> None:
    """Raise `FoldRefused` if a folded layer, named by its ``kv_b_proj``, has a norm that `fold_incoming` never saw."""
    norm = _NORMS.get(projection)
    if norm is not None and checksum(norm.get_parameter("weight")) != _SETTLED[norm]:
        raise FoldRefused(
            "weights that were loaded past vLLM's reload, into a model with folded latents",
            "they were not folded, and the cached rows are",
            "reload_weights, and weight transfers by " + " and ".join(FOLLOWED),
            f"Restart this worker, and load through these or with {FOLD}=off",
        )


def refuse_processed(model: torch.nn.Module) -> None:
    """Raise `FoldRefused` if ``model`` is folded: vLLM is about to copy the first of its weights in as it is."""
    if any(folds_of(model).exponents.values()):
        raise FoldRefused(
            "weights in kernel format (is_checkpoint_format=False) for a model with folded latents",
            "they are copied as they are, and nobody can tell whether they were folded; none was copied",
            "weights in checkpoint format, which are folded as they arrive",
            f"Reload with is_checkpoint_format=True, or start all workers with {FOLD}=off",
        )
