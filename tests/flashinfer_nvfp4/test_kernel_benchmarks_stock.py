"""The kernels' benchmarks without a GPU: they say what they cannot measure, and their programs are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from kernel_calls import missing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = [
    *("--device", "cpu", "--tokens", "1", "2", "--heads", "8", "--topk", "64", "--slots", "128", "--repeat", "1"),
    *("--rows", "128", "1024", "--prefill-tokens", "8", "--workspace", "39841792"),
]
"""39,657,472 bytes are a pass and 64 rows; 320 more make 384, so 1024 rows come in three parts."""

with_triton = pytest.mark.skipif(missing() is not None, reason=str(missing()))
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: run the benchmark")


def _run(script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)

    assert done.returncode == code, done.stderr[-3000:]
    return done


@without_gpu
def test_without_a_gpu_the_benchmark_says_so_and_ends_with_3() -> None:
    told = _run("nvfp4_gpu.py", code=3).stderr

    assert told.startswith("nvfp4_gpu: torch sees no CUDA device; run this on a machine with an NVIDIA GPU")


@with_triton
def test_the_whole_gpu_benchmark_runs_in_the_interpreter() -> None:
    """All its sections at tiny sizes; times mean nothing there, figures do."""
    done = _run("nvfp4_gpu.py", *SMALL, "--json", "-")
    report: dict[str, Any] = json.loads(done.stdout)
    bandwidth = report["device"]["gigabytes_per_second"] * 1e3  # bytes a microsecond

    assert all(check["passed"] and check["figure"] is not None for check in report["numerics"])
    assert [check["name"] for check in report["numerics"]][-3:] == [
        "decode triton, 8 heads, %",
        "prefill of 8 tokens in 128 rows, 1 parts, %",
        "prefill of 8 tokens in 1024 rows, 4 parts, %",
    ]
    one, two = report["decode"]
    assert (one["tokens"], two["tokens"], one["of_best"]) == (1, 2, 1.0)
    # A token selects 64 of 128 rows, two tokens together no more than all.
    assert one["floor_us"] == pytest.approx(64 * 352 / bandwidth, rel=0.01, abs=0.01)
    assert two["floor_us"] <= 128 * 352 / bandwidth * 1.01 + 0.01
    assert report["prefill"]["not_timed"] == "staged: no GPU"
    assert report["prefill"]["direct_kernel"] == "triton"
    assert set(report["prefill"]["steps_us"]) == {"row", "row_floor", "lists", "merge", "direct"}
    assert report["skipped"] == []
    assert "of_best  error_percent" in done.stderr


@without_gpu
@with_triton
def test_the_errors_of_the_page_are_what_the_command_prints() -> None:
    """In the interpreter they do not depend on the machine, but for the order in which a matrix product is summed."""
    figures = json.loads(_run("nvfp4_kernel_errors.py", "--json").stdout)
    page = (BENCHMARKS.parent / "docs" / "nvfp4.md").read_text().splitlines()

    assert figures.pop("device") == "cpu"
    for name, figure in figures.items():
        [line] = [line for line in page if line.startswith(f"{name}  ")]
        told = float(line.rpartition(" ")[2])
        assert (abs(told - figure) <= 1e-6) if name.endswith("LSE") else (told == pytest.approx(figure, abs=0.005))
