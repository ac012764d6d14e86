"""The latent fold inside vLLM: after a model's weights are loaded, before vLLM processes them."""

from __future__ import annotations

import logging
from typing import Any

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.fold import fold_exponent, fold_model, folds_of
from flashinfer_nvfp4.fold_tensors import NORM, mla_tensors
from flashinfer_nvfp4.query import limited_exponents
from flashinfer_nvfp4.reloading import follow_reloads, require_reloads
from flashinfer_nvfp4.settings import FOLD, fold_wanted
from flashinfer_nvfp4.stock import least_of_ranks, weight_transfer
from flashinfer_nvfp4.workspace import SETTING as PREFILL

__all__ = ["activate", "fold_loaded", "row_layers"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")


def activate() -> None:
    """Let vLLM's loader call `fold_loaded` from now on, unless the setting says off; harmless when repeated."""
    if fold_wanted():
        from flashinfer_nvfp4.patches import FOLD as RECORDS
        from flashinfer_nvfp4.patches import REGISTER

        REGISTER.apply(RECORDS)


def row_layers(model: torch.nn.Module) -> list[Any]:
    """The attention layers of a model that keep NVFP4 rows."""
    return [layer for layer in model.modules() if getattr(getattr(layer, "impl", None), "keeps_nvfp4_rows", False)]


def fold_loaded(model: torch.nn.Module) -> dict[str, int]:
    """Fold a model whose weights have just been loaded, if it keeps NVFP4 rows and the setting does not say off.

    Returns k by layer name, empty where nothing was folded. Where a kernel of decode or prefill takes its query in
    e4m3, no layer is folded farther than that range allows, and no worker of a tensor-parallel group farther than the
    others. Weights that are loaded again later are folded by the same k. Raises `FoldRefused` with no weight changed.
    """
    layers = row_layers(model)
    if not layers or not fold_wanted():
        return {}
    quantized = [layer for layer in layers if _takes_fp8_queries(layer)]
    try:
        require_reloads(weight_transfer())
        wanted = folds_of(model).exponents or _wanted(model)
        allowed = wanted
        if quantized and not folds_of(model).exponents:
            allowed = _limited(model, wanted, quantized[0])
        exponents = fold_model(model, allowed)
    except FoldRefused as error:
        _tell_ways_out(error, quantized)
        raise
    follow_reloads(model)
    _tell(exponents, {layer: k for layer, k in wanted.items() if exponents[layer] != k})
    return exponents


def _takes_fp8_queries(layer: Any) -> bool:
    """Whether decode or prefill of this layer rounds its query to e4m3."""
    return getattr(layer.impl, "takes_fp8_queries", False)


def _tell_ways_out(error: FoldRefused, quantized: list[Any]) -> None:
    if quantized and not quantized[0].impl.supports_quant_query_input:
        error.add_note(f"To keep the fold, set {PREFILL}=0: only staged prefill rounds queries to e4m3 here.")
    error.add_note(f"To serve the model without the fold, set {FOLD}=off for all workers.")


def _wanted(model: torch.nn.Module) -> dict[str, int]:
    return {
        match["layer"].removesuffix("."): fold_exponent(tensor)
        for name, tensor in mla_tensors(model).items()
        if (match := NORM.fullmatch(name))
    }


def _limited(model: torch.nn.Module, wanted: dict[str, int], layer: Any) -> dict[str, int]:
    """What the e4m3 queries of all workers allow: of one k for all, because their rows are the same."""
    limited = limited_exponents(
        dict(model.named_parameters()),
        wanted,
        heads=layer.num_heads,
        nope=layer.qk_nope_head_dim,
        rope=layer.qk_rope_head_dim,
        value=layer.v_head_dim,
    )
    least = least_of_ranks([abs(k) for k in limited.values()])
    return {name: size if k > 0 else -size for (name, k), size in zip(limited.items(), least, strict=True)}


def _tell(exponents: dict[str, int], less: dict[str, int]) -> None:
    folded = {layer: exponent for layer, exponent in exponents.items() if exponent}
    _log.info(
        "flashinfer_nvfp4: folded the latents of %d of %d layers by 2^%d to 2^%d (%s=off leaves them)",
        len(folded),
        len(exponents),
        min(folded.values(), default=0),
        max(folded.values(), default=0),
        FOLD,
    )
    if less:
        _log.info(
            "flashinfer_nvfp4: folded less than their latents ask for, so that e4m3 holds their queries: %s",
            ", ".join(f"{layer} by 2^{exponents[layer]} instead of 2^{k}" for layer, k in less.items()),
        )
