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
SMALL = ["--device", "cpu", "--tokens", "1", "2", "--topk", "64", "--slots", "128", "--repeat", "1", "--heads", "8"]

with_triton = pytest.mark.skipif(missing() is not None, reason=str(missing()))
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: run the benchmark")


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)

    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@without_gpu
def test_without_a_gpu_decode_is_not_timed() -> None:
    assert _run("nvfp4_decode.py") == "skipped: torch sees no CUDA device here, and kernel times need one\n"


@with_triton
def test_decode_is_compared_with_float64_and_with_the_devices_memory() -> None:
    report: dict[str, Any] = json.loads(_run("nvfp4_decode.py", *SMALL, "--json"))
    bandwidth = report["gigabytes_per_second"] * 1e3  # bytes a microsecond

    assert list(report["launches"]) == ["1", "2"]
    for launch in report["launches"].values():
        assert 0 < launch["triton"]["error_percent"] < 0.5
    # A token selects 64 of 128 rows, two tokens together no more than all.
    assert report["launches"]["1"]["triton"]["floor_us"] == pytest.approx(64 * 352 / bandwidth, abs=0.02)
    assert report["launches"]["2"]["triton"]["floor_us"] <= 128 * 352 / bandwidth + 0.02


@without_gpu
@with_triton
def test_the_errors_of_the_page_are_what_the_command_prints() -> None:
    """In the interpreter they do not depend on the machine, but for the order in which a matrix product is summed."""
    figures = json.loads(_run("nvfp4_kernel_errors.py", "--json"))
    page = (BENCHMARKS.parent / "docs" / "nvfp4.md").read_text().splitlines()

    assert figures.pop("device") == "cpu"
    for name, figure in figures.items():
        [line] = [line for line in page if line.startswith(f"{name}  ")]
        told = float(line.rpartition(" ")[2])
        assert (abs(told - figure) <= 1e-6) if name.endswith("LSE") else (told == pytest.approx(figure, abs=0.005))
