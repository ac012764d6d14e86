"""Every record of every register still applies to the installed release, and is still needed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

PLUGINS = ("dynamo_structural_tags", "flashinfer_nvfp4", "mooncake_tier", "rl_capture", "vllm_blhnc", "vllm_cpu_dsa")

WAIT = """
import os
import sys

import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

if sys.argv[1] == "patched":
    from vllm_cpu_dsa.patches import REGISTER

    [row] = REGISTER.apply(["spin-wait-sleeps"]).rows
    assert row.status == "applied", row
yields = 0
stock = os.sched_yield


def counted():
    global yields
    yields += 1
    stock()


os.sched_yield = counted
reader = SpinCondition(is_reader=True, context=zmq.Context(), notify_address="inproc://test")
reader.record_read()
for _ in range(50):
    reader.wait(timeout_ms=1)
print(yields)
os._exit(0)
"""


def _register(plugin: str) -> ModuleType:
    return importlib.import_module(f"{plugin}.patches")


@pytest.mark.parametrize("plugin", PLUGINS)
def test_no_patch_has_become_unnecessary(plugin: str) -> None:
    """Fails on the release that contains the fix: then the record is deleted, or its window closed."""
    assert _register(plugin).REGISTER.obsolete() == ()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_every_patch_of_this_release_finds_its_target(plugin: str) -> None:
    code = (
        f"from {plugin}.patches import REGISTER\n"
        "from stockpatch.versions import installed\n"
        "here = [p for p in REGISTER.patches if installed(*p.window.distributions)]\n"
        "rows = {row.id: row.status for row in REGISTER.apply([p.id for p in here]).rows}\n"
        "print(bool(here) and all(rows[p.id] == ('applied' if p.concerned() else 'skipped') for p in here))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(("how", "yields"), [("stock", 50), ("patched", 0)])
def test_a_waiting_engine_does_not_yield_its_run_time_away(how: str, yields: int) -> None:
    """Stock calls sched_yield once a turn, which Linux 6.18 charges a whole slice for."""
    done = subprocess.run([sys.executable, "-c", WAIT, how], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.splitlines()[-1]) == yields
