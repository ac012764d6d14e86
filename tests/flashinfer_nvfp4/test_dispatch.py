"""Which kernel decodes, and what is refused: tables, on facts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from refused_rows import says

from flashinfer_nvfp4.dispatch import GATHER_BYTES, Installed, Shape, choose
from flashinfer_nvfp4.errors import SettingRefused
from flashinfer_nvfp4.refusals import Deployment, refusal
from flashinfer_nvfp4.settings import BACKEND, FOLD, backend_choice, fold_wanted

GLM_TP4 = Shape(capability=(10, 0), heads=16, topk=2048, lse=False, tokens=32, graphs=True)
NO_JIT = Installed(cuda="no nvcc")
NO_SOURCES = Installed(cuda="no nvcc", flashinfer="no sources")
NOTHING = Installed(cuda="no nvcc", flashinfer="no sources", trtllm="no FlashInfer", triton="no Triton")


@pytest.mark.parametrize(
    ("change", "installed", "kernel", "fp8_query"),
    [
        ({}, Installed(), "cuda", False),
        ({"capability": (10, 3)}, Installed(), "cuda", False),
        ({"capability": (9, 0)}, Installed(), "cuda", False),
        ({"capability": (12, 0)}, Installed(), "cuda", False),
        ({"lse": True, "heads": 128}, Installed(), "cuda", False),
        ({"heads": 8}, Installed(), "cuda", False),
        ({}, NO_JIT, "flashinfer", True),
        ({"heads": 64}, NO_JIT, "flashinfer", True),
        ({"heads": 8}, NO_JIT, "flashinfer", True),
        ({"topk": 512}, NO_JIT, "flashinfer", True),
        ({"heads": 24}, NO_JIT, "triton", False),
        ({"lse": True}, NO_JIT, "triton", False),
        ({"topk": 256}, NO_JIT, "triton", False),
        ({"topk": 128 * 65}, NO_JIT, "triton", False),
        ({"capability": (9, 0)}, NO_JIT, "triton", False),
        ({"capability": (12, 0)}, NO_JIT, "triton", False),
        ({"capability": (12, 1)}, Installed(), "triton", False),
        ({}, NO_SOURCES, "triton", False),
        ({"topk": 2000}, Installed(), "gather", True),
        ({"topk": 2000, "tokens": 8192}, Installed(), None, False),
        ({"topk": 2000, "capability": (9, 0)}, Installed(), None, False),
        ({"heads": 129, "tokens": 8192}, Installed(), None, False),
        ({"heads": 0, "capability": (9, 0)}, Installed(), None, False),
        ({"capability": (8, 0)}, Installed(), None, False),
        ({}, NOTHING, None, False),
    ],
)
def test_the_first_kernel_that_fits_decodes(
    change: Any, installed: Installed, kernel: str | None, fp8_query: bool
) -> None:
    """Limits of FlashInfer's op: its README (16 heads, 3 to 32 stages of 32 keys for 3 to 8 blocks, no LSE)."""
    choice = choose(replace(GLM_TP4, **change), installed)

    assert (choice.kernel, choice.fp8_query) == (kernel, fp8_query)


def test_the_reason_tells_what_was_passed_over_and_why() -> None:
    choice = choose(GLM_TP4, NO_SOURCES)

    assert choice.reason == (
        "this package's Triton kernel reads rows as they lie in the cache; not cuda: no nvcc; "
        "not flashinfer: no sources"
    )


def test_without_any_kernel_every_one_has_its_reason() -> None:
    reason = choose(GLM_TP4, NOTHING).reason

    assert [part.split(":")[0] for part in reason.split("; ")] == [
        "not cuda",
        "not flashinfer",
        "not triton",
        "not gather",
    ]


def test_a_kernel_that_the_setting_names_is_taken_alone() -> None:
    assert choose(GLM_TP4, Installed(), "triton").kernel == "triton"
    assert choose(GLM_TP4, Installed(), "triton").reason == "FLASHINFER_NVFP4_BACKEND=triton"
    assert choose(replace(GLM_TP4, lse=True), Installed(), "flashinfer").kernel is None


def test_copied_rows_stay_below_their_limit() -> None:
    most = GATHER_BYTES // (2048 * 576)

    assert choose(replace(GLM_TP4, tokens=most), Installed(), "gather").kernel == "gather"
    assert "MiB of rows, more than 256" in choose(replace(GLM_TP4, tokens=most + 1), Installed(), "gather").reason


GLM = Deployment(latent=512, rope=64, topk=2048)


def test_glm_5_3_is_served() -> None:
    assert refusal(GLM) is None


@pytest.mark.parametrize(
    ("change", "row", "value"),
    [
        ({"rope": 0}, "nvfp4-no-rope", "qk_rope_head_dim=0 "),
        ({"latent": 448}, "nvfp4-row-sizes", "kv_lora_rank=448 "),
        ({"rope": 128}, "nvfp4-row-sizes", "qk_rope_head_dim=128"),
        ({"topk": None}, "nvfp4-no-indexer", "allowed: models with one"),
        ({"dtype": "float16"}, "nvfp4-dtype", "dtype=float16"),
        ({"sinks": True}, "nvfp4-sinks", "attention sinks"),
        ({"hisparse": True}, "nvfp4-hisparse", "remove it"),
        ({"skipped": ("0", "1")}, "nvfp4-skip-layers", "kv_cache_dtype_skip_layers=('0', '1')"),
        ({"prefill_parallel": 2}, "nvfp4-prefill-parallel", "prefill_context_parallel_size=2"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(change: Any, row: str, value: str) -> None:
    told = refusal(replace(GLM, **change)) or ""

    says(row, told)
    assert value in told


def test_settings_are_read_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (BACKEND, FOLD):
        monkeypatch.delenv(name, raising=False)
    assert (backend_choice(), fold_wanted()) == ("auto", True)

    monkeypatch.setenv(BACKEND, "triton")
    monkeypatch.setenv(FOLD, "off")
    assert (backend_choice(), fold_wanted()) == ("triton", False)

    monkeypatch.setenv(BACKEND, "fast")
    monkeypatch.setenv(FOLD, "1")
    with pytest.raises(SettingRefused, match="FLASHINFER_NVFP4_BACKEND='fast'.*auto, off, cuda, flashinfer, triton"):
        backend_choice()
    with pytest.raises(SettingRefused, match="FLASHINFER_NVFP4_FOLD='1'.*on, off, and unset for on") as refused:
        fold_wanted()
    says("nvfp4-setting", str(refused.value))
