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

REGISTER = "from vllm.plugins import load_general_plugins; load_general_plugins(); print('started')"


def _start(**environ: str | None) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    merged = {**base, **ENVIRONMENT, **environ}
    return subprocess.run(
        [sys.executable, "-c", REGISTER],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_switched_on_it_starts() -> None:
    done = _start()

    assert done.stdout.splitlines()[-1:] == ["started"], done.stderr


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"VLLM_TARGET_DEVICE": "cpu"}, "VLLM_TARGET_DEVICE=cpu makes vLLM pass over every platform plugin"),
        ({"VLLM_CPU_DSA": "yes"}, "VLLM_CPU_DSA='yes' is neither on nor off"),
    ],
)
def test_a_setting_that_would_silently_leave_stocks_platform_stops_the_start_up(
    environ: dict[str, str], said: str
) -> None:
    done = _start(**environ)

    assert done.returncode != 0
    assert "started" not in done.stdout
    assert said in done.stderr


def test_an_untested_release_of_vllm_stops_the_start_up(tmp_path: Path) -> None:
    info = tmp_path / "vllm-0.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

    done = _start(PYTHONPATH=path)

    assert done.returncode != 0
    assert "vllm==0.99.0 is installed" in done.stderr
    assert "STOCKPATCH_ALLOW_UNTESTED" in done.stderr


def refusal(model: Path, environ: dict[str, str], options: dict[str, Any]) -> str:
    """The error text with which an engine refuses to start."""
    from dsa_engine import engine, environment

    try:
        with environment(**environ), engine(model, **options):
            return "started"
    except Exception as error:
        return str(error)


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ({"block_size": 16}, {}, "--block-size 16: an indexer page holds 64 keys"),
        ({"block_size": 128}, {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}, "--block-size 128 with VLLM_KV_CACHE_LAYOUT"),
        ({"kv_cache_dtype": "fp8"}, {}, "--kv-cache-dtype fp8: no installed row format"),
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
