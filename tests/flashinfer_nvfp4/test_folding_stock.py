"""When the loader's hook folds, and when it refuses; `test_fold_engine_stock` runs it in an engine."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

import torch
from refused_rows import says

from flashinfer_nvfp4 import folding
from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.folding import fold_loaded
from flashinfer_nvfp4.settings import FOLD
from flashinfer_nvfp4.stock import least_of_ranks

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


def test_where_the_query_is_fp8_a_layer_is_folded_as_far_as_its_range_allows() -> None:
    """1.5 over 2^4 is above 2^-4, below which e4m3 runs out of bits, and over 2^5 it is not; 2^6 suits a bfloat16
    query, and a query of 96."""
    assert fold_loaded(_model(2.0**-6, query=1.5)) == {"layers.0": 6}
    assert fold_loaded(_model(2.0**-6, query=96.0, fp8_query=True)) == {"layers.0": 6}

    model = _model(2.0**-6, query=1.5, fp8_query=True)
    assert fold_loaded(model) == {"layers.0": 4}
    assert _norm(model) == 2.0**-2
    assert fold_loaded(model) == {"layers.0": 4}
    assert _norm(model) == 2.0**-2


def test_a_query_that_is_out_of_range_already_leaves_its_layer_unfolded() -> None:
    """Weights of --load-format dummy, for one."""
    model = _model(2.0**-6, query=2.0**-12, fp8_query=True)

    assert fold_loaded(model) == {"layers.0": 0}
    assert _norm(model) == 2.0**-6


def test_workers_that_share_a_layers_heads_fold_it_by_the_least_of_their_exponents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "least_of_ranks", lambda sizes: [min(size, 2) for size in sizes])

    assert fold_loaded(_model(2.0**-6, query=1.5, fp8_query=True)) == {"layers.0": 2}
    assert fold_loaded(_model(2.0**5, query=1.5, fp8_query=True)) == {"layers.0": -2}


def _rank(rank: int, store: str, answers: Any) -> None:
    """One of two workers. Fake: vLLM's tensor-parallel group, around torch's real one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    state.get_tp_group = lambda: SimpleNamespace(world_size=2, cpu_group=torch.distributed.group.WORLD)
    answers.put(least_of_ranks([[3, 0, 7], [2, 5, 7]][rank]))


def test_the_least_of_the_ranks_is_known_to_all_of_them(tmp_path: Path) -> None:
    assert least_of_ranks([4, 1]) == [4, 1]  # one worker

    importlib.import_module("vllm.distributed.parallel_state")
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    ranks = [fork.Process(target=_rank, args=(rank, str(tmp_path / "store"), answers)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    found = [answers.get(timeout=60) for _ in ranks]
    for process in ranks:
        process.join(60)

    assert found == [[2, 0, 7], [2, 0, 7]]


def test_queries_of_unknown_size_are_refused_with_what_would_serve_the_model() -> None:
    for staged, notes in ((False, ["FLASHINFER_NVFP4_FOLD=off"]), (True, ["PREFILL_MIB=0", "FOLD=off"])):
        model = _model(2.0**-6, fp8_query=True, staged=staged)
        model.layers[0].q_b_proj.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
        with pytest.raises(FoldRefused, match=r"layers.0.q_b_proj.*torch.int8.*its size is not known") as refused:
            fold_loaded(model)
        says("nvfp4-query-form", str(refused.value))

        assert [note in told for note, told in zip(notes, refused.value.__notes__, strict=True)] == [True] * len(notes)
        assert _norm(model) == 2.0**-6


def test_weights_that_cannot_be_folded_stop_the_start_and_stay_as_they_are() -> None:
    odd, large = _model(2.0**-6), _model(2.0**-6)
    odd.layers[0].kv_b_proj.register_buffer("qweight", torch.zeros(1))
    large.layers[0].kv_b_proj.weight.data *= 2.0**-140
    for row, model in (("nvfp4-fold-form", odd), ("nvfp4-fold-range", large)):
        with pytest.raises(FoldRefused) as refused:
            fold_loaded(model)
        says(row, str(refused.value))
        assert "FLASHINFER_NVFP4_FOLD=off" in refused.value.__notes__[0]
        assert _norm(model) == 2.0**-6


def test_a_weight_transfer_that_would_bring_unfolded_weights_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's own configuration; `test_reloading_stock` has the transfers that are followed."""
    config = importlib.import_module("vllm.config")
    transfer = importlib.import_module("vllm.config.weight_transfer").WeightTransferConfig
    monkeypatch.setattr(
        config,
        "get_current_vllm_config_or_none",
        lambda: SimpleNamespace(weight_transfer_config=transfer(backend="sparse_nccl")),
    )
    model = _model(2.0**-6)
    with pytest.raises(FoldRefused, match=r"weight_transfer_config with backend='sparse_nccl'.*nccl and ipc"):
        fold_loaded(model)
    assert _norm(model) == 2.0**-6
