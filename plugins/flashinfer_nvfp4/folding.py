"""The latent fold inside vLLM: after a model's weights are loaded, before vLLM processes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.fold import NORM, fold_exponent, fold_model, process_folds
from flashinfer_nvfp4.query import check_queries
from flashinfer_nvfp4.settings import FOLD, fold_wanted
from flashinfer_nvfp4.workspace import SETTING as PREFILL

__all__ = ["activate", "fold_loaded", "refuse_reload", "row_layers"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")


def activate() -> None:
    """Let vLLM's loader call `fold_loaded` from now on, unless the setting says off; harmless when repeated."""
    if fold_wanted():
        from flashinfer_nvfp4.patches import FOLD as RECORD
        from flashinfer_nvfp4.patches import REGISTER

        REGISTER.apply(RECORD)


def row_layers(model: torch.nn.Module) -> list[Any]:
    """The attention layers of a model that keep NVFP4 rows."""
    return [layer for layer in model.modules() if getattr(getattr(layer, "impl", None), "keeps_nvfp4_rows", False)]


def fold_loaded(model: torch.nn.Module) -> dict[str, int]:
    """Fold a model whose weights have just been loaded, if it keeps NVFP4 rows and the setting does not say off.

    Returns k by layer name, empty where nothing was folded. Where a kernel of decode or prefill takes its query in
    e4m3, every layer's must stay in that range. Raises `FoldRefused` with no weight changed.
    """
    layers = row_layers(model)
    if not layers or not fold_wanted():
        return {}
    quantized: list[Any] = []
    try:
        quantized = [layer for layer in layers if getattr(layer.impl, "takes_fp8_queries", False)]
        if quantized:
            _check(dict(model.named_parameters()), quantized[0])
        exponents = fold_model(model)
    except FoldRefused as error:
        if quantized and not quantized[0].impl.supports_quant_query_input:
            error.add_note(f"To keep the fold, set {PREFILL}=0: only staged prefill rounds queries to e4m3 here.")
        error.add_note(f"To serve the model without the fold, set {FOLD}=off for all workers.")
        raise
    folded = {layer: exponent for layer, exponent in exponents.items() if exponent}
    _log.info(
        "flashinfer_nvfp4: folded the latents of %d of %d layers by 2^%d to 2^%d (%s=off leaves them)",
        len(folded),
        len(exponents),
        min(folded.values(), default=0),
        max(folded.values(), default=0),
        FOLD,
    )
    return exponents


def refuse_reload() -> None:
    """Raise `FoldRefused` if weights arrive a second time while this process keeps folded rows."""
    if any(process_folds().values()):
        raise FoldRefused(
            "weights loaded again into a running engine",
            "they are not folded, and rows that were written before are",
            f"a restart, or {FOLD}=off from the start",
            "Restart this worker and its peers with the new weights",
        )


def _check(tensors: Mapping[str, torch.Tensor], layer: Any) -> None:
    exponents = {
        match["layer"].removesuffix("."): fold_exponent(tensor)
        for name, tensor in tensors.items()
        if (match := NORM.fullmatch(name))
    }
    check_queries(
        tensors,
        exponents,
        heads=layer.num_heads,
        nope=layer.qk_nope_head_dim,
        rope=layer.qk_rope_head_dim,
        value=layer.v_head_dim,
    )
