"""Power-of-two latent fold: each layer's latent is brought to the size that NVFP4 scales hold best, at no cost.

A row has no room for an outer scale, so a layer whose latents are small (GLM's first layers) gets subnormal e4m3
block scales and loses accuracy. But the latent is produced by a norm and consumed by a linear map only: multiplying
``kv_a_layernorm`` by ``s = 2**k`` and dividing ``kv_b_proj`` by it leaves every logit and every output bit as it
was, because a power of two changes exponents only, while the cache holds ``s`` times the latent.

``k`` needs no data: an RMS norm's output has the root mean square of the norm's weight, so ``k`` is chosen such that
the weight's becomes one (from ``2**-0.5`` to below ``2**0.5``). No row can then saturate: a normalized element is at
most sqrt(512) and a weight at most sqrt(512) times the root mean square, so a latent is below 725 of 2688.

`LatentFolds` changes the tensors of a model in place and remembers, by checksum, which exponent each of them carries.
So folding twice changes nothing, weights that were loaded again are folded again, and one tensor loaded without the
other is brought back in step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.exponents import PLAIN, checksum, scale_exactly, scaled
from flashinfer_nvfp4.fold_tensors import Share, check_apart, layers_of, mla_tensors

__all__ = ["LatentFolds", "fold_exponent", "fold_model", "folds_of", "mla_tensors", "process_folds", "unfold_model"]

LARGEST_EXPONENT = 64

_FOLDS = "_flashinfer_nvfp4_folds"
_MODELS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
"""What `fold_model` was called with and still lives."""
_DERIVED = ("W_UK_T", "W_UV", "W_K", "W_V")
"""What vLLM's MLAAttention keeps of kv_b_proj once it has processed the weights."""


def fold_exponent(norm_weight: torch.Tensor) -> int:
    """The k for which ``norm_weight * 2**k`` has a root mean square from ``2**-0.5`` to below ``2**0.5``.

    ``norm_weight``: bfloat16, float16 or float32, any shape. 0 for a weight of zeros. Exact, so that every device and
    every worker finds the same k, and a folded weight has k = 0. Raises `FoldRefused` for values that are not finite,
    for another dtype and where k would be beyond 64.
    """
    if norm_weight.dtype not in PLAIN:
        raise FoldRefused(
            f"norm weight of {norm_weight.dtype}",
            "its size is not in its values",
            "bfloat16, float16, float32",
            "Load it plain",
        )
    values = norm_weight.detach().double().flatten().tolist()
    if not all(map(math.isfinite, values)):
        raise FoldRefused("norm weight with inf or NaN", "it has no size", "finite values", "Check the checkpoint")
    # Squares of float32 are exact in float64, and fsum rounds once: no order of summation, no logarithm.
    mean_square = math.fsum(x * x for x in values) / max(len(values), 1)
    if not mean_square:
        return 0
    exponent = -(math.frexp(mean_square)[1] // 2)
    if abs(exponent) > LARGEST_EXPONENT:
        raise FoldRefused(
            f"norm weight of root mean square {mean_square**0.5:.3g}",
            f"it asks for a fold by 2**{exponent}",
            f"exponents from -{LARGEST_EXPONENT} to {LARGEST_EXPONENT}",
            "Check the checkpoint",
        )
    return exponent


class LatentFolds:
    """The exponents that the tensors of one model carry. Keep it as long as the model."""

    def __init__(self) -> None:
        self._carried: dict[str, tuple[int, int]] = {}
        self._exponents: dict[str, int] = {}

    @property
    def exponents(self) -> dict[str, int]:
        """k by layer name, as of the last `apply` or `undo`."""
        return dict(self._exponents)

    @property
    def carried(self) -> dict[str, int]:
        """The exponent that a tensor carries, by its name, of those that carry one."""
        return {name: exponent for name, (exponent, _) in self._carried.items()}

    def apply(self, tensors: Mapping[str, torch.Tensor], exponents: Mapping[str, int] | None = None) -> dict[str, int]:
        """Fold every layer found in ``tensors``, in place, and return k by layer name.

        ``tensors``: by name as a checkpoint or ``named_parameters`` has them; a layer is what stands before
        ``kv_a_layernorm.weight``, and its ``kv_b_proj`` tensors stand beside it. ``exponents``: k by layer; a layer
        that is missing gets 0. Without it, `fold_exponent` of the weight as loaded.

        Raises `FoldRefused`, with nothing changed, if a value would leave its dtype's range, a layer is incomplete or
        quantized in a way that is not known, two names stand for one tensor, or ``exponents`` names a layer that is not
        there or a k that is no whole number within 64.
        """
        layers = dict(layers_of(tensors))
        if unknown := sorted(set(exponents or ()) - set(layers)):
            raise FoldRefused(
                f"exponents for {unknown}",
                "there are no such layers",
                f"{sorted(layers)}",
                "Fold the model they belong to",
            )
        if odd := {n: k for n, k in (exponents or {}).items() if not isinstance(k, int) or abs(k) > LARGEST_EXPONENT}:
            raise FoldRefused(
                f"exponents {odd}",
                "they are no powers of two that a latent could need",
                f"whole numbers from -{LARGEST_EXPONENT} to {LARGEST_EXPONENT}",
                "Leave exponents out, and each layer gets its own",
            )
        check_apart(share for shares in layers.values() for share in shares)
        chosen: dict[str, int] = {}
        steps: list[tuple[Share, int, int]] = []
        for layer, shares in layers.items():
            norm = shares[0]
            chosen[layer] = (
                fold_exponent(norm.tensor) + self._carries(norm) if exponents is None else exponents.get(layer, 0)
            )
            for share in shares:
                target = share.sign * chosen[layer]
                step = target - self._carries(share)
                scaled(share.name, share.tensor, step)  # raises before anything is changed
                steps.append((share, target, step))
        for share, target, step in steps:
            scale_exactly(share.name, share.tensor, step)
            self._carried.pop(share.name, None)
            if target:
                self._carried[share.name] = target, checksum(share.tensor)
        self._exponents.update(chosen)
        return chosen

    def undo(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Bring every layer found in ``tensors`` back to its bits as loaded."""
        self.apply(tensors, {})

    def _carries(self, share: Share) -> int:
        """The exponent in the tensor now: the recorded one if its bits are still those recorded, 0 if it was loaded."""
        if share.name not in self._carried:
            return 0
        exponent, recorded = self._carried[share.name]
        return exponent if checksum(share.tensor) == recorded else 0


def fold_model(model: torch.nn.Module, exponents: Mapping[str, int] | None = None) -> dict[str, int]:
    """`LatentFolds.apply` on a whole model, which keeps the record; returns k by layer name.

    To be called after loading and before vLLM processes the weights: later it has its own copies of ``kv_b_proj``, and
    this raises `FoldRefused`.
    """
    for name, module in model.named_modules():
        if copies := [
            attribute for attribute in _DERIVED if isinstance(getattr(module, attribute, None), torch.Tensor)
        ]:
            raise FoldRefused(
                f"{name or 'the model'} with {', '.join(copies)}",
                "these copies of kv_b_proj would stay unfolded",
                "weights as loaded",
                "Fold before process_weights_after_loading",
            )
    folds = folds_of(model)
    _MODELS.add(model)
    return folds.apply(mla_tensors(model), exponents)


def folds_of(model: torch.nn.Module) -> LatentFolds:
    """The record of a model's folds, empty for one that was never folded."""
    folds: LatentFolds = model.__dict__.setdefault(_FOLDS, LatentFolds())
    return folds


def process_folds() -> dict[str, int]:
    """k by layer name of all models, drafts included, that `fold_model` has folded in this process.

    Raises `FoldRefused` if two of them give one layer different exponents.
    """
    found: dict[str, int] = {}
    for model in _MODELS:
        for layer, exponent in folds_of(model).exponents.items():
            if found.setdefault(layer, exponent) != exponent:
                raise FoldRefused(
                    f"{layer} with the exponents {found[layer]} and {exponent}",
                    "two models of this process have it, so its rows have no one meaning",
                    "one exponent a layer",
                    "Serve one of the models in another process",
                )
    return found


def unfold_model(model: torch.nn.Module) -> None:
    """Undo `fold_model`; a model that was not folded stays as it is."""
    fold_model(model, {})
