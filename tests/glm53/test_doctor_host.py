"""Facts of a machine, read from files and tools: GPUs, fabric and limits, with tools that fail or never answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from glm53.doctor.host import Gpu, Port, ToolError, examine, look, run

SMI = "NVIDIA GB200, 189471, 10.0, 580.95.05\nNVIDIA GB200, 189471, 10.0, 580.95.05\n"
NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"


def _root(folder: Path, capabilities: int = 0) -> Path:
    """A file system as Linux shows it on a node with two GPUs and one RDMA device with a second, dead port."""
    for path, text in {
        "proc/meminfo": "MemTotal:       2000 kB\nHugePages_Total:      16\nHugepagesize:       2048 kB\n",
        "proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities:016x}\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/ports/2/state": "1: DOWN\n",
        "dev/nvidia0": "",
        "dev/nvidia1": "",
        "dev/nvidiactl": "",
        "dev/nvidia-caps-imex-channels/channel0": "",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def _tool(command: Sequence[str]) -> str:
    return {"nvidia-smi": SMI, "nvcc": NVCC}[command[0]]


def _absent(command: Sequence[str]) -> str:
    raise ToolError(f"{command[0]} is not installed")


def test_a_node_is_described(tmp_path: Path) -> None:
    host = look(_root(tmp_path), _tool)

    assert host.gpus == (Gpu("NVIDIA GB200", 189_471 << 20, (10, 0), "580.95.05"),) * 2
    assert host.gpu_devices == 2
    assert host.ports == (
        Port("mlx5_0", 1, True, "InfiniBand", "400 Gb/sec (4X NDR)"),
        Port("mlx5_0", 2, False, "", ""),
    )
    assert (host.memory, host.huge_pages, host.huge_page_bytes) == (2000 << 10, 16, 2 << 20)
    assert (host.channels, host.nvcc) == (1, "13.0")
    assert list(examine(host)) == []


def test_the_capability_to_lock_memory_lifts_the_limit(tmp_path: Path) -> None:
    """CAP_IPC_LOCK is number 14 in linux/capability.h; pods of the recipes are given it."""
    assert look(_root(tmp_path, 1 << 14), _absent).locked == -1


def test_an_empty_file_system_is_a_machine_without_anything(tmp_path: Path) -> None:
    host = look(tmp_path, _absent)

    assert (host.gpus, host.ports, host.memory, host.shm, host.nvcc) == ((), (), 0, 0, "")


def test_gpus_whose_tool_is_absent_or_talks_nonsense_are_a_finding(tmp_path: Path) -> None:
    absent = look(_root(tmp_path), _absent)
    confused = look(tmp_path, lambda command: "Unable to determine the device handle\n")

    assert absent.gpu_error == "nvidia-smi is not installed"
    assert "Unable to determine" in confused.gpu_error
    assert [one.code for host in (absent, confused) for one in examine(host)] == ["gpu-unreadable"] * 2


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["no-such-tool-at-all"], "is not installed"),
        (["sh", "-c", "echo broken >&2; exit 3"], "ended with 3: broken"),
        (["sleep", "30"], "did not answer within 0.2 s"),
    ],
)
def test_a_tool_that_fails_is_told_and_never_waited_for(command: list[str], why: str) -> None:
    with pytest.raises(ToolError, match=why):
        run(command, seconds=0.2)


def test_a_tool_that_hangs_takes_what_it_started_with_it(tmp_path: Path) -> None:
    """nvidia-smi is often a script; its child would hold the GPU, or the terminal, for good."""
    with pytest.raises(ToolError):
        run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/child; wait"], seconds=1)

    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    for _ in range(500):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the child still runs")


def test_this_machine_can_be_looked_at() -> None:
    host = look()

    assert host.memory > 0
    assert host.cpus >= 1
