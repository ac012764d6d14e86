"""When the loader's hook folds, and when it refuses; `test_fold_engine_stock` runs it in an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.folding import fold_loaded, refuse_reload
from flashinfer_nvfp4.settings import FOLD

HEADS, NOPE, VALUE, RANK = 2, 192, 256, 32


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLD, raising=False)


def _model(
    size: float, *, rows: bool = True, fp8_query: bool = False, staged: bool = False, query: float = 1.0
) -> torch.nn.Module:
    """One attention layer, as vLLM's: the projections are its own, and its implementation says what it keeps."""
    torch.manual_seed(0)
    layer = torch.nn.Module()
    for name, shape in (("q_b_proj", (HEADS * (NOPE + 64), RANK)), ("kv_b_proj", (HEADS * (NOPE + VALUE), 512))):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(
            torch.randn(shape) * (query * (NOPE * RANK) ** -0.5 if name[0] == "q" else 1)
        )
        setattr(layer, name, module)
    for name, width, value in (("q_a_layernorm", RANK, 1.0), ("kv_a_layernorm", 512, size)):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.full((width,), value))
        setattr(layer, name, module)
    layer.__dict__.update(num_heads=HEADS, qk_nope_head_dim=NOPE, qk_rope_head_dim=64, v_head_dim=VALUE)
    layer.impl = SimpleNamespace(
        keeps_nvfp4_rows=rows, takes_fp8_queries=fp8_query, supports_quant_query_input=fp8_query and not staged
    )
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([layer])
    return model


def _norm(model: Any) -> float:
    return float(model.layers[0].kv_a_layernorm.weight[0].detach())


def test_a_model_with_rows_is_folded_once_however_often_it_is_asked() -> None:
    model = _model(2.0**-6)

    assert fold_loaded(model) == {"layers.0": 6}
    assert fold_loaded(model) == {"layers.0": 6}
    assert _norm(model) == 1.0


def test_a_model_without_rows_and_one_without_the_setting_stay_as_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    other = _model(2.0**-6, rows=False)
    assert fold_loaded(other) == {}
    assert fold_loaded(torch.nn.Linear(1, 1)) == {}

    monkeypatch.setenv(FOLD, "off")
    model = _model(2.0**-6)
    assert fold_loaded(model) == {}
    assert _norm(model) == _norm(other) == 2.0**-6


def test_where_the_query_is_fp8_a_fold_that_pushes_it_out_of_range_is_refused() -> None:
    """2^-6 of a query of size one is below 2^-4, where e4m3 runs out of bits; the same fold suits a bfloat16 query."""
    model = _model(2.0**-6, fp8_query=True)
    with pytest.raises(FoldRefused, match=r"layers.0: folded by 2\*\*6.*Use exponent") as refused:
        fold_loaded(model)
    assert ["FLASHINFER_NVFP4_FOLD=off" in note for note in refused.value.__notes__] == [True]
    assert _norm(model) == 2.0**-6

    with pytest.raises(FoldRefused) as only_staged:
        fold_loaded(_model(2.0**-6, fp8_query=True, staged=True))
    assert "FLASHINFER_NVFP4_PREFILL_MIB=0" in only_staged.value.__notes__[0]

    assert fold_loaded(_model(2.0**-6, fp8_query=True, query=64.0)) == {"layers.0": 6}
    assert fold_loaded(_model(2.0**-6)) == {"layers.0": 6}


def test_weights_that_arrive_again_under_folded_rows_are_refused() -> None:
    model = _model(2.0**-6)
    fold_loaded(model)

    with pytest.raises(FoldRefused, match="weights loaded again.*FLASHINFER_NVFP4_FOLD=off from the start"):
        refuse_reload()
    del model
    refuse_reload()
