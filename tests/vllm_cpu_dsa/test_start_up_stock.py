"""Start-ups that must fail, each in a process of its own, and the refusals that stock passes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")
pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

from dsa_engine import ENVIRONMENT


def test_a_target_device_that_makes_vllm_pass_over_the_platform_stops_the_start_up() -> None:
    """vLLM drops a platform plugin without a word, but an error in a general plugin ends the process."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    done = subprocess.run(
        [sys.executable, "-c", "from vllm.plugins import load_general_plugins as load; load(); print('started')"],
        env={**others, **ENVIRONMENT, "VLLM_TARGET_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "VLLM_CPU_DSA=1, but vLLM runs on vllm.platforms.cpu.CpuPlatform" in done.stderr
    assert "VLLM_TARGET_DEVICE=cpu makes vLLM pass over every platform plugin: unset it" in done.stderr


def refusal(model: Path, environ: dict[str, str], options: dict[str, Any]) -> str:
    """The error text with which an engine refuses to start."""
    from dsa_engine import engine, environment, installed

    try:
        with environment(**environ), installed(None), engine(model, **options):
            return "started"
    except Exception as error:
        return str(error)


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ({"block_size": 16}, {}, "--block-size 16: an indexer page holds 64 keys"),
        ({"block_size": 128}, {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}, "--block-size 128 with VLLM_KV_CACHE_LAYOUT"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, {}, "--kv-cache-dtype fp8_ds_mla: no installed row format"),
        (
            {"kv_cache_dtype": "nvfp4_ds_mla", "kv_cache_dtype_skip_layers": ["0"]},
            {},
            "--kv-cache-dtype-skip-layers 0: layers would share blocks",
        ),
        ({"kv_cache_dtype": "nvfp4_ds_mla"}, {"FLASHINFER_NVFP4_POLICY": "best"}, "FLASHINFER_NVFP4_POLICY='best'"),
        ({"pipeline_parallel_size": 2}, {}, "--pipeline-parallel-size 2: vLLM does not pass"),
        ({"attention_backend": "CPU_MLA"}, {}, "--attention-backend CPU_MLA: it has no sparse attention"),
        ({"enforce_eager": False}, {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}, "Pass --enforce-eager"),
        (
            {"compilation_config": {"custom_ops": ["+rotary_embedding"]}},
            {},
            'custom_ops=["+rotary_embedding"]: vLLM\'s compiled CPU rotary op',
        ),
        ({}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "VLLM_USE_V2_MODEL_RUNNER=1: the CPU worker's second"),
        (
            {"hf_overrides": {"index_topk_freq": 1}},
            {},
            "indexer_types=['full', 'full', 'full', 'shared']: vLLM ignores this key",
        ),
        ({"hf_overrides": {"index_topk": 0}}, {}, "index_topk=0: the indexer must know"),
    ],
)
def test_vllm_passes_the_refusal_on_before_it_loads_anything(
    run: Callable[..., Any], folder: Any, options: dict[str, Any], environ: dict[str, str], said: str
) -> None:
    assert said in run(refusal, folder(), environ, options)
