"""What a worker tells its peers about its NVFP4 rows."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4 import writer
from flashinfer_nvfp4.errors import FoldRefused, RowsRefused
from flashinfer_nvfp4.fingerprint import fingerprint
from flashinfer_nvfp4.fold import fold_model, process_folds
from flashinfer_nvfp4.peer_fact import RowFingerprint
from flashinfer_nvfp4.policy import SETTING


def _config(cache_dtype: str = "nvfp4_ds_mla", device: str = "cpu") -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(cache_dtype=cache_dtype), device_config=SimpleNamespace(device_type=device)
    )


def _model(size: float) -> torch.nn.Module:
    """One layer, ``0``, whose latents have this size."""
    layer = torch.nn.Module()
    layer.kv_a_layernorm = torch.nn.Module()
    layer.kv_a_layernorm.weight = torch.nn.Parameter(torch.full((512,), size))
    layer.kv_b_proj = torch.nn.Linear(512, 8, bias=False)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([layer])
    return model


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    gc.collect()  # models that earlier tests have folded


@pytest.mark.parametrize("policy", ["search", "rtn", "four_over_six"])
def test_on_the_cpu_the_policy_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setenv(SETTING, policy)

    assert RowFingerprint().value(_config()) == f"nvfp4_ds_mla-352-1/{policy}/unfolded"


def test_elsewhere_rows_are_stocks_until_a_layer_of_this_plugin_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "four_over_six")
    assert RowFingerprint().value(_config(device="cuda")) == "nvfp4_ds_mla-352-1/rtn/unfolded"

    monkeypatch.setattr(writer, "_policy", None)
    monkeypatch.setattr("flashinfer_nvfp4.patches.REGISTER.apply", lambda ids: None)
    writer.activate(cuda=False)
    assert RowFingerprint().value(_config(device="cuda")) == "nvfp4_ds_mla-352-1/four_over_six/unfolded"


def test_with_another_cache_dtype_it_does_not_matter() -> None:
    assert RowFingerprint().value(_config("fp8")) is None


@pytest.mark.parametrize(("draft", "told"), [("nvfp4_ds_mla", True), ("fp8", False), (None, False)])
def test_a_draft_may_keep_rows_where_the_model_keeps_none(draft: str | None, told: bool) -> None:
    config = _config("fp8")
    config.speculative_config = SimpleNamespace(kv_cache_dtype=draft)

    assert (RowFingerprint().value(config) == "nvfp4_ds_mla-352-1/search/unfolded") is told


def test_a_bad_setting_is_not_told_as_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "best")

    with pytest.raises(RowsRefused, match="FLASHINFER_NVFP4_POLICY='best'"):
        RowFingerprint().value(_config())


def test_the_folds_of_a_live_model_are_in_it() -> None:
    model = _model(2.0**-6)
    fold_model(model)

    assert process_folds() == {"layers.0": 6}
    assert RowFingerprint().value(_config()) == fingerprint("search", {"layers.0": 6})

    del model
    assert process_folds() == {}


def test_one_layer_folded_differently_in_two_models_is_refused() -> None:
    models = [_model(2.0**-6), _model(2.0**-3)]
    for model in models:
        fold_model(model)

    with pytest.raises(FoldRefused, match="layers.0 with the exponents .*one exponent a layer"):
        process_folds()
