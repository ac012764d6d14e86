"""The CUDA kernel's waiting, on the host under a race detector: a thread for each warp, copies as late as they may be.

It sees races between warps and between thread blocks, not between lanes of a warp, nor what only a GPU's memory does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flashinfer_nvfp4.cuda_arch import CSRC

FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=thread", "-pthread")
RACE = 66
"""What ThreadSanitizer ends a program with."""

WAITS = {
    "unpacking for a drained slot": "    barrier_wait(&shared.drained[slot], stage / kSlots % 2 ^ 1);\n",
    "scoring for the other partial scores": "    group_sync(kScoreBarrier, 32 * kScoreWarps);\n",
    "merging for the cluster": "    cluster_sync();\n    merge_units",
}


def _compile(folder: Path, without: str = "") -> Path:
    """host_race.cpp with a copy of the sources in which a wait is missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler with ThreadSanitizer: install g++")
    sources = shutil.copytree(CSRC, folder / "csrc")
    pipeline = sources / "pipeline.h"
    code = pipeline.read_text()
    assert not without or code.count(without) == 1
    pipeline.write_text(code.replace(without, "    merge_units" if without.endswith("merge_units") else ""))
    program = folder / "race"
    main = Path(__file__).with_name("host_race.cpp")
    subprocess.run([compiler, *FLAGS, f"-I{sources}", str(main), "-o", str(program)], check=True)
    return program


def _run(program: Path, seconds: int) -> str:
    """What came of a run: "clean", "race", or "hangs" after so many seconds."""
    environment = {**os.environ, "TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"}
    try:
        done = subprocess.run([program], capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "hangs"
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel: lower vm.mmap_rnd_bits to 28")
    return {0: "clean", RACE: "race"}.get(done.returncode, done.stdout + done.stderr)


def test_the_pipeline_has_no_races_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    assert _run(_compile(tmp_path), 300) == "clean"


@pytest.mark.parametrize("waiting", WAITS)
def test_without_a_wait_it_races_or_hangs(tmp_path: Path, waiting: str) -> None:
    """So the test above would tell. A detector sees what the threads happened to do, hence up to five runs."""
    program = _compile(tmp_path, WAITS[waiting])

    assert next((seen for _ in range(5) if (seen := _run(program, 30)) != "clean"), "clean") in ("race", "hangs")
