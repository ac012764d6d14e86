"""The kernel benchmark without a GPU: its layouts and row numbers are right, and it says what it cannot measure."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "blhnc_kernels.py"
SMALL = ["--device", "cpu", "--requests", "2", "--context", "256", "--selected", "64", "--repeat", "2"]

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: run make test, which installs it")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: run python benchmarks/blhnc_kernels.py")
    result = _run()

    assert result.returncode == 0
    assert result.stdout == "skipped: torch sees no CUDA device here, and kernel times need one\n"


@pytest.mark.parametrize("align", ["1", "32", "64"])
def test_both_layouts_hold_the_same_rows(align: str) -> None:
    """`gather` ends the program unless every selected row of every layer is the same in both."""
    result = _run(*SMALL, "--align-rows", align, "--json")

    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["kernels"]["attention"] == {
        "skipped": "TRTLLM-gen's sparse MLA needs a Blackwell GPU of compute capability 10.x"
    }
    assert report["kernels"]["indexer"] == {"skipped": "DeepGEMM needs a GPU"}
    gathered = report["kernels"]["gather"]
    assert 0 < gathered["min"] <= gathered["ratio"] <= gathered["max"]


def test_a_layout_that_holds_other_rows_is_noticed() -> None:
    """The program, with a byte of one page changed."""
    changed = (
        "import runpy, sys\n"
        f"sys.argv = {[str(SCRIPT), *SMALL, '--kernels', 'gather']!r}\n"
        f"module = runpy.run_path({str(SCRIPT)!r})\n"
        "fill = module['fill']\n"
        "def wrong(layouts, device):\n"
        "    fill(layouts, device)\n"
        "    layouts[1].mla[5].view(-1, 64, 576)[:, :, 7] += 1\n"
        "module['main'].__globals__['fill'] = wrong\n"
        "module['main']()\n"
    )
    result = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, timeout=300)

    assert result.returncode == 1
    assert "gather: layer 5 gives other results in BLHNC" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--context", "100"], "--context 100 must be a multiple of 64"),
        (["--context", "64", "--selected", "65"], "at least --selected 65"),
        (["--requests", "0"], "0 is not a positive number"),
        (["--align-rows", "48"], "invalid choice: 48"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], why: str) -> None:
    result = _run(*arguments)

    assert result.returncode == 2
    assert why in result.stderr
