"""What is known of this machine: processors, memory, GPUs and fabric. Nothing is changed, and no tool is waited for."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glm53.doctor.finding import Diagnosis

__all__ = ["Gpu", "Host", "Port", "ToolError", "examine", "look", "run"]

_IPC_LOCK = 1 << 14  # linux/capability.h


class ToolError(RuntimeError):
    """A tool that is not there, failed, or did not answer in time; the text says which."""


@dataclass(frozen=True)
class Gpu:
    """memory_bytes: as the driver counts it, a few per cent less than the data sheet. capability: e.g. (10, 0)."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    driver: str


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device. link: InfiniBand or Ethernet."""

    device: str
    number: int
    active: bool
    link: str
    rate: str


@dataclass(frozen=True)
class Host:
    """Facts; sizes in bytes. locked: that may be locked, -1 without limit. huge_pages: of `huge_page_bytes` each.

    gpu_devices: device files of GPUs, whether or not nvidia-smi answers. gpu_error: why it did not.
    channels: IMEX channels, over which NVLink reaches memory of other nodes. nvcc: release of the CUDA compiler.
    """

    name: str
    machine: str
    python: str
    cpus: int
    memory: int
    shm: int
    huge_pages: int
    huge_page_bytes: int
    locked: int
    open_files: int
    gpus: tuple[Gpu, ...] = ()
    gpu_devices: int = 0
    gpu_error: str = ""
    ports: tuple[Port, ...] = ()
    channels: int = 0
    nvcc: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(command: Sequence[str], seconds: float = 10) -> str:
    """Standard output of a tool. Raises `ToolError`."""
    program = shutil.which(command[0])
    if program is None:
        raise ToolError(f"{command[0]} is not installed")
    try:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it started can be ended with it
        )
    except OSError as error:
        raise ToolError(f"{command[0]} cannot be run: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{command[0]} did not answer within {seconds:g} s") from None
    finally:
        if process.returncode is None:  # it hangs, or we were interrupted
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    if process.returncode:
        said = (out + err).strip().splitlines()
        raise ToolError(f"{command[0]} ended with {process.returncode}" + (f": {said[-1][:200]}" if said else ""))
    return out


def look(root: Path = Path("/"), tool: Callable[[Sequence[str]], str] = run) -> Host:
    """The facts of this machine. root: the file system that is looked at. tool: runs a program."""
    memory = _memory(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY or _may_lock(root)
    devices = len([one for one in _names(root / "dev") if re.fullmatch(r"nvidia\d+", one)])
    gpus, error = _gpus(tool) if devices or shutil.which("nvidia-smi") else ((), "")
    try:
        nvcc = re.search(r"release ([\d.]+)", tool(["nvcc", "--version"]))
    except ToolError:
        nvcc = None
    return Host(
        name=socket.gethostname(),
        machine=platform.machine(),
        python=".".join(map(str, sys.version_info[:3])),
        cpus=len(os.sched_getaffinity(0)),
        memory=memory.get("MemTotal", 0),
        shm=_size(root / "dev" / "shm"),
        huge_pages=memory.get("HugePages_Total", 0),
        huge_page_bytes=memory.get("Hugepagesize", 0),
        locked=-1 if unlimited else soft,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        gpus=gpus,
        gpu_devices=devices,
        gpu_error=error,
        ports=tuple(_ports(root / "sys" / "class" / "infiniband")),
        channels=len(_names(root / "dev" / "nvidia-caps-imex-channels")),
        nvcc=nvcc[1] if nvcc else "",
    )


def examine(host: Host) -> Iterator[Diagnosis]:
    """Findings about devices that are there and do not work."""
    if host.gpu_devices and host.gpu_error:
        yield Diagnosis(
            "gpu-unreadable",
            "nvidia-smi",
            f"{host.gpu_devices} GPU devices are in /dev, and {host.gpu_error}.",
            "Install the driver's tools in the image or mount them; if it hangs, a GPU or the driver does.",
            (("nvidia-smi",),),
        )
    if host.ports and not any(port.active for port in host.ports):
        yield Diagnosis(
            "rdma-down",
            ", ".join(sorted({port.device for port in host.ports})),
            f"none of {len(host.ports)} RDMA ports is active.",
            "Bring the links up, and start the subnet manager on InfiniBand.",
            (("ibv_devinfo",),),
        )


def _gpus(tool: Callable[[Sequence[str]], str]) -> tuple[tuple[Gpu, ...], str]:
    fields = "name,memory.total,compute_cap,driver_version"
    try:
        text = tool(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    except ToolError as error:
        return (), str(error)
    found = []
    for line in filter(str.strip, text.splitlines()):
        try:
            name, memory, capability, driver = (part.strip() for part in line.rsplit(",", 3))
            major, _, minor = capability.partition(".")
            found.append(Gpu(name, int(float(memory)) << 20, (int(major), int(minor)), driver))
        except ValueError:
            return (), f"nvidia-smi said {line.strip()[:100]!r}"
    return tuple(found), ""


def _ports(folder: Path) -> Iterator[Port]:
    for device in _names(folder):
        for number in _names(folder / device / "ports"):
            place = folder / device / "ports" / number
            if number.isdigit():
                state, link, rate = (_text(place / name) for name in ("state", "link_layer", "rate"))
                yield Port(device, int(number), state.endswith("ACTIVE"), link, rate)


def _memory(root: Path) -> dict[str, int]:
    """Lines of /proc/meminfo: bytes, or a number where there is no unit."""
    rows = re.findall(r"^(\w+):\s+(\d+)( kB)?$", _text(root / "proc" / "meminfo"), re.MULTILINE)
    return {name: int(value) << (10 if unit else 0) for name, value, unit in rows}


def _may_lock(root: Path) -> bool:
    """Whether this process has CAP_IPC_LOCK, with which the limit on locked memory does not count."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text(root / "proc" / "self" / "status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) & _IPC_LOCK)


def _size(folder: Path) -> int:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0
    return facts.f_frsize * facts.f_blocks


def _names(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
