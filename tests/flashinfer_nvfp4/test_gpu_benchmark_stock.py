"""The arithmetic of the GPU benchmark: floors, ratios, tables, its time, and what it makes of its figures."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.errors import BuildRefused

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("nvfp4_gpu")


@pytest.fixture
def clock(gpu: Any) -> Any:
    return sys.modules["nvfp4_clock"]


def test_the_floor_is_the_bytes_of_the_selected_rows_over_the_bandwidth(clock: Any) -> None:
    """2048 rows of 352 bytes of 128 tokens without a common one, at 8 TB/s: 92 MB in 11.5 us."""
    assert clock.floor_us(128 * 2048, 352, 8e6) == pytest.approx(11.534, abs=1e-3)
    assert clock.floor_us(0, 352, 8e6) == 0


def test_a_ratio_needs_both_times(clock: Any) -> None:
    assert clock.ratio(12.0, 8.0) == 1.5
    assert clock.ratio(None, 8.0) is None
    assert clock.ratio(8.0, None) is None
    assert clock.ratio(8.0, 0.0) is None


def test_columns_are_aligned_and_what_was_not_measured_is_empty(clock: Any) -> None:
    assert clock.table([{"kernel": "cuda", "us": 1.5}, {"kernel": "x"}], ["kernel", "us"]).split("\n") == [
        "kernel    us",
        "  cuda  1.50",
        "     x      ",
    ]


def test_what_begins_after_the_budget_is_skipped_by_name(clock: Any) -> None:
    now = [100.0]
    budget = clock.Budget(10.0, lambda: now[0])

    assert budget.allows("first")
    now[0] = 110.0
    assert not budget.allows("second")
    assert budget.skipped == ["second"]


def test_costs_are_the_sums_of_their_steps() -> None:
    """A direct token of 64 heads is four of 16; a part is its lists, the shortest launch and a merge."""
    prefill = importlib.import_module("nvfp4_prefill")
    steps = {"row": 0.001, "lists": 0.01, "merge": 0.02, "direct": 2.0, "staged": 0.4, "shortest": 0.1}

    assert prefill.measured_costs(steps, 64) == pytest.approx(
        {"direct": 0.5, "staged": 0.41, "part": 0.13, "row": 0.001}
    )
    assert prefill.measured_costs({"row": 0.001, "direct": 2.0}, 16) is None


@pytest.mark.parametrize(
    ("figures", "sections", "late", "code"),
    [
        ([(0.3, False), (None, False)], ["numerics"], False, 0),
        ([(0.6, False)], ["numerics"], False, 1),
        ([(0.3, False), (None, True)], ["numerics"], False, 1),
        ([(None, False)], ["numerics"], False, 3),
        ([], ["numerics"], True, 0),
        ([], ["decode"], False, 0),
    ],
)
def test_the_exit_code_tells_wrong_figures_from_none(
    gpu: Any, clock: Any, figures: Any, sections: list[str], late: bool, code: int
) -> None:
    numerics = sys.modules["nvfp4_numerics"]
    found = [numerics.Check("one", figure, 0.5, "why", broken) for figure, broken in figures]
    budget = clock.Budget(-1.0 if late else 100.0)
    budget.allows("more")

    assert gpu.exit_code(found, sections, budget) == code


def test_a_kernel_that_cannot_run_is_told_from_one_that_fails(gpu: Any) -> None:
    numerics = sys.modules["nvfp4_numerics"]

    def missing() -> float:
        raise sys.modules["nvfp4_launches"].Unavailable("no sources")

    assert str(numerics.checked("op", 5, missing)) == "ok  op: not run: no sources"
    assert (
        str(numerics.checked("own", 0.5, lambda: 1 / 0)) == "WRONG  own: not run: ZeroDivisionError: division by zero"
    )
    assert str(numerics.checked("own", 0.5, lambda: 0.6)) == "WRONG  own: 0.6, at most 0.5"


def test_only_a_missing_package_or_build_excuses_this_plugins_kernels(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = sys.modules["nvfp4_launches"]
    work = launches.Work(torch.zeros(1), None, None, None)

    def raising(error: Exception) -> Any:
        def launch(work: Any) -> Any:
            raise error

        return launch

    for name, error in (("cuda", BuildRefused("nvcc=None", "a", "b", "c")), ("trtllm", RuntimeError("no\nkernel"))):
        monkeypatch.setitem(launches.KERNELS, name, raising(error))
        with pytest.raises(launches.Unavailable, match=r"BuildRefused: nvcc=None|RuntimeError: no$"):
            launches.tried(name, work)
    monkeypatch.setitem(launches.KERNELS, "triton", raising(RuntimeError("illegal address")))
    with pytest.raises(RuntimeError, match="illegal address"):
        launches.tried("triton", work)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topk", "40"], r"--topk=40.*a multiple of 32"),
        (["--slots", "1024"], r"--slots=1024.*at most --slots"),
        (["--rows", "100"], r"--rows=\[100\].*multiple of 64"),
        (["--tokens", "0"], "0 is not a positive number"),
        (["--kernels", "cutlass"], "invalid choice"),
        (["--workspace", "1000"], r"--workspace=1000:.*or more: \d+ MiB"),
        (["--json", "/no/such/folder/report.json"], "/no/such/folder is no folder"),
    ],
)
def test_arguments_that_fit_no_launch_are_refused(
    gpu: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        gpu.main(arguments)

    assert end.value.code == 2
    assert re.search(message, capsys.readouterr().err)
