"""Collect what `mooncake_tier.node.findings` judges: wheels, libraries, devices, ports, the store, workers' reports."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mooncake_tier.client import xxh3
from mooncake_tier.client.connection import StoreAddress, rehearse
from mooncake_tier.client.master import Master
from mooncake_tier.client.network import listeners
from mooncake_tier.errors import TierUnavailable
from mooncake_tier.identity.reports import read_reports
from mooncake_tier.node.findings import Facts, Workload
from mooncake_tier.stock import MOONCAKE, installed_wheels
from stockpatch.versions import UnsupportedVersion

__all__ = ["collect", "missing_libraries"]

_PROGRAMS = ("mooncake_master", "mooncake_client")
_FILES = ("store.so", *_PROGRAMS)


def collect(
    address: StoreAddress | None = None,
    metrics: Master | None = None,
    workload: Workload | None = None,
    reports: Sequence[Path] = (),
    lease_s: float | None = None,
    protocol: str = "tcp",
    within_s: float = 30.0,
) -> Facts:
    """The facts of this machine. Without an address the store is not asked; without metrics, neither its capacity.

    lease_s: of the master; None reads it from a master that runs here. Changes nothing.
    """
    wheels = installed_wheels()
    unsupported: UnsupportedVersion | None = None
    try:
        if wheels:
            MOONCAKE.require()
    except UnsupportedVersion as error:
        unsupported = error
    missing = missing_libraries()
    unreachable = None
    if address is not None and wheels and not missing:
        try:
            rehearse(address, within_s)
        except TierUnavailable as error:
            unreachable = str(error)
    capacity = None
    if metrics is not None and unreachable is None:
        try:
            capacity = int(metrics.stats().get("capacity_bytes", 0))
        except TierUnavailable as error:
            unreachable = str(error)
    running = _running()
    found, unreadable = read_reports(reports)
    devices = Path("/sys/class/infiniband")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Facts(
        wheels=wheels,
        unsupported=unsupported,
        missing=missing,
        xxhash=xxh3.library_path(),
        compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        gpus=Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists(),
        rdma_devices=sorted(one.name for one in devices.iterdir()) if devices.is_dir() else (),
        locked_memory=-1 if soft == resource.RLIM_INFINITY else soft,
        protocol=protocol,
        everywhere=[str(one) for pid in running for one in listeners(pid) if one.everywhere],
        unreachable=unreachable,
        capacity=capacity,
        lease_s=lease_s if lease_s is not None else _lease(running),
        workload=workload,
        reports=found,
        unreadable=unreadable,
    )


def missing_libraries() -> dict[str, str]:
    """Library -> file of Mooncake that needs it and does not find it, as the dynamic loader says."""
    spec = importlib.util.find_spec("mooncake")
    loader = next(iter(sorted(Path("/lib64").glob("ld-linux-*.so.*"))), None)
    missing: dict[str, str] = {}
    for place in (spec.submodule_search_locations or ()) if spec and loader else ():
        for file in (Path(place) / name for name in _FILES):
            if file.exists():
                traced = os.environ | {"LD_TRACE_LOADED_OBJECTS": "1"}  # lists, and runs nothing
                listed = subprocess.run([str(loader), str(file)], capture_output=True, text=True, env=traced)
                for name in re.findall(r"^\s*(\S+) => not found", listed.stdout, re.MULTILINE):
                    missing.setdefault(name, file.name)
    return missing


def _running() -> dict[int, list[str]]:
    """Mooncake's programs on this machine: process id -> arguments."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if Path(arguments[0]).name in _PROGRAMS:
                found[int(folder.name)] = arguments
    return found


def _lease(running: dict[int, list[str]]) -> float | None:
    """Seconds, if all masters that run here have the same."""
    leases = {
        int(match[1]) / 1000
        for arguments in running.values()
        for argument in arguments
        if (match := re.fullmatch(r"--?default_kv_lease_ttl=(\d+)", argument))
    }
    return leases.pop() if len(leases) == 1 else None
