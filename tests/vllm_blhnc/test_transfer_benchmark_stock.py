"""The transfer benchmark runs, counts what GLM-5.3's geometry costs, and refuses what cannot run; no time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "blhnc_transfer.py"
PAYLOAD = 79 * 64 * 576 + 22 * 64 * 132  # bytes of a GLM-5.3 block in fp8
ROW = 3_115_008  # the same in rows aligned to 32 MLA rows, from vLLM's planner
LAYOUTS = ["LBNHC", "BLHNC strided", "BLHNC rows", "BLHNC rows+"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if find_spec("nixl") is None:
        pytest.skip("needs nixl: run make test, which installs it, or use .venv/bin/python -m pytest")
    result = _run("--blocks", "20", "--runs", "1", "8", "--repeat", "2", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_descriptors_are_those_of_101_caches(report: dict[str, Any]) -> None:
    """20 blocks in runs of 1, of 8 (8 + 8 + 4) and in one."""
    counts = {(case["run"], case["layout"]): case["descriptors"] for case in report["cases"]}

    expected = {1: [2020, 2020, 20, 1], 8: [303, 2020, 3, 1], 20: [101, 2020, 1, 1]}
    assert counts == {
        (run, name): count for run, row in expected.items() for name, count in zip(LAYOUTS, row, strict=True)
    }


def test_every_layout_moves_the_blocks_and_rows_their_padding_too(report: dict[str, Any]) -> None:
    for case in report["cases"]:
        assert case["verified"] is True
        assert case["bytes"] == 20 * (ROW if "rows" in case["layout"] else PAYLOAD)


def test_ratios_are_to_the_default_layout_of_the_same_repetition(report: dict[str, Any]) -> None:
    for case in report["cases"]:
        for name in ("post", "total"):
            spread = case[f"{name}_ratio"]
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
            if case["layout"] == "LBNHC":
                assert spread == {"median": 1, "min": 1, "max": 1}
    assert report["row_bytes"] == ROW
    assert report["repeat"] == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--blocks", "0"], "0 is not a positive number"),
        (["--repeat", "-1"], "-1 is not a positive number"),
        (["--blocks", "10000000"], "GB are free; at most"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(arguments: list[str], why: str) -> None:
    result = _run(*arguments)

    assert result.returncode == 2
    assert why in result.stderr


def test_help_needs_nothing_but_the_script() -> None:
    result = _run("--help")

    assert result.returncode == 0
    assert "--blocks" in result.stdout
