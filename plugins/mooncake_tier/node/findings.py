"""What can be wrong with a machine, as rules: facts in, findings out. `mooncake_tier.node.doctor` collects facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stockpatch.versions import UnsupportedVersion

__all__ = ["CODES", "Facts", "Finding", "Workload", "examine"]


@dataclass(frozen=True)
class Finding:
    """Something wrong. code: its name, in the docs' table. seen, needed, fix: a sentence or less each."""

    code: str
    seen: str
    needed: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the tier is for. sessions: agents at the same time. tokens: of the longest prompt.

    bytes_per_token: of KV, as `glm53 plan kv` says. gigabytes_per_s: at which one request's blocks are read.
    """

    sessions: int
    tokens: int
    bytes_per_token: int
    gigabytes_per_s: float

    @property
    def request_bytes(self) -> int:
        return self.tokens * self.bytes_per_token

    @property
    def load_s(self) -> float:
        """Seconds to read the blocks of the longest prompt."""
        return self.request_bytes / (self.gigabytes_per_s * 1e9)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found; None where it could not be told.

    wheels: installed Mooncake distributions and versions. unsupported: why the release is not one that was tested.
    missing: library -> file of Mooncake that needs it. xxhash: path of the library. compiler: whether there is one.
    gpus: whether this machine has NVIDIA GPUs. rdma_devices: names. locked_memory: bytes that may be locked, -1 for
    any. everywhere: ``address:port`` of Mooncake's ports here that are open on every interface. unreachable: why the
    store did not answer. capacity: bytes of all pools. lease_s: of the master. reports: worker -> its namespace's
    fields and the namespace itself. unreadable: reports that could not be read, with the reason.
    """

    wheels: Mapping[str, str]
    unsupported: UnsupportedVersion | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    xxhash: str | None = None
    compiler: bool = True
    gpus: bool = False
    rdma_devices: Sequence[str] = ()
    locked_memory: int = -1
    protocol: str = "tcp"
    everywhere: Sequence[str] = ()
    unreachable: str | None = None
    capacity: int | None = None
    lease_s: float | None = None
    workload: Workload | None = None
    reports: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def examine(facts: Facts) -> list[Finding]:
    """Every finding, in the order of `CODES`."""
    return [finding for rule in _RULES for finding in rule(facts)]


def _wheels(facts: Facts) -> list[Finding]:
    names = sorted(facts.wheels)
    if not names:
        fix = "pip install mooncake-transfer-engine-non-cuda, or on GPUs the wheel for their CUDA release"
        return [Finding("wheel-missing", "no Mooncake wheel is installed", "one", fix)]
    found = []
    if len(names) > 1:
        fix = f"pip uninstall {' '.join(names)}, then install one of them"
        why = "one: they all install the package `mooncake` and overwrite each other's files"
        found.append(Finding("wheel-two", f"{' and '.join(names)} are installed", why, fix))
    elif facts.unsupported is not None:
        seen = f"{names[0]}=={facts.wheels[names[0]]}"
        found.append(Finding("wheel-release", seen, "a release that was tested", str(facts.unsupported)))
    cuda = [name for name in names if not name.endswith("-non-cuda")]
    if len(names) == 1 and facts.gpus != bool(cuda):
        if facts.gpus:
            fix = f"pip uninstall {names[0]}, then install the wheel for the driver's CUDA release"
            found.append(
                Finding("wheel-cuda", f"{names[0]} on a machine with GPUs", "a wheel that can read their memory", fix)
            )
        else:
            fix = f"pip uninstall {cuda[0]}, then pip install mooncake-transfer-engine-non-cuda"
            found.append(
                Finding("wheel-cuda", f"{cuda[0]} on a machine without GPUs", "the wheel that needs no driver", fix)
            )
    return found


def _libraries(facts: Facts) -> list[Finding]:
    found = []
    for name, user in facts.missing.items():
        fix = _PACKAGES.get(name.partition(".so")[0], "install the package that has it")
        found.append(Finding("library-missing", f"{name} is not found", f"{user} links to it", fix))
    if facts.xxhash is None and facts.wheels:
        fix = "install Mooncake's wheel again, or the system's libxxhash0"
        found.append(
            Finding("checksum-missing", "no xxHash library", "the one in Mooncake's wheel, or the system's", fix)
        )
    return found


_PACKAGES = {
    "libibverbs": "apt-get install libibverbs1 ibverbs-providers (rdma-core on RPM systems)",
    "librdmacm": "apt-get install librdmacm1",
    "libmlx5": "apt-get install ibverbs-providers",
    "libnuma": "apt-get install libnuma1",
    "libcurl": "apt-get install libcurl4",
    "libcuda": "install the NVIDIA driver, or the wheel mooncake-transfer-engine-non-cuda instead",
    "libcudart": "pip install the CUDA runtime of the wheel's CUDA release",
}


def _transport(facts: Facts) -> list[Finding]:
    found = []
    if facts.protocol == "rdma" and not facts.rdma_devices:
        fix = "give the container its devices (/dev/infiniband), or use --protocol tcp"
        found.append(Finding("rdma-missing", "protocol rdma without a device", "one in /sys/class/infiniband", fix))
    if facts.protocol == "rdma" and facts.locked_memory >= 0:
        fix = "ulimit -l unlimited, or the container's memlock limit"
        seen = f"{facts.locked_memory} bytes may be locked"
        found.append(Finding("rdma-memlock", seen, "no limit: RDMA locks every registered buffer", fix))
    if facts.everywhere:
        fix = "start it with mooncake-tier serve, and its users with the LD_PRELOAD line that serve prints"
        seen = f"Mooncake listens on every interface: {', '.join(facts.everywhere)}"
        found.append(Finding("ports-open", seen, "one interface: whoever reaches them can write the pool", fix))
    elif not facts.compiler:
        fix = "install a C compiler, or put a firewall before the ports and serve with --open-transfer-ports"
        seen = "no C compiler"
        found.append(Finding("compiler-missing", seen, "one, to keep Mooncake's ports on one interface", fix))
    return found


def _store(facts: Facts) -> list[Finding]:
    if facts.unreachable is not None:
        fix = "start mooncake-tier serve, or correct --master"
        return [Finding("store-unreachable", facts.unreachable, "a master that answers a lookup", fix)]
    found = []
    if facts.capacity == 0:
        fix = "start mooncake-tier serve --pool SIZE on this or another machine"
        found.append(Finding("pool-missing", "the master knows no pool", "one that lends memory", fix))
    work = facts.workload
    if work is None:
        return found
    if facts.lease_s is not None and facts.lease_s < 2 * work.load_s:
        fix = f"serve with --lease {_up(2 * work.load_s)}"
        seen = f"a lease of {facts.lease_s:g} s"
        needed = f"{2 * work.load_s:.3g} s: twice what reading {work.request_bytes / 1e9:.3g} GB takes"
        found.append(Finding("lease-short", seen, needed, fix))
    needed_bytes = work.sessions * work.request_bytes
    if facts.capacity and facts.capacity < needed_bytes:
        fix = f"serve with --pool {_up(needed_bytes / (1 << 30))}GiB, or count on recomputing"
        seen = f"pools of {facts.capacity / (1 << 30):.4g} GiB"
        needed = f"{needed_bytes / (1 << 30):.4g} GiB for {work.sessions} sessions of {work.tokens:,} tokens"
        found.append(Finding("pool-small", seen, needed, fix))
    return found


def _keys(facts: Facts) -> list[Finding]:
    found = [
        Finding("report-unreadable", f"{name}: {why}", "a report as a worker writes it", "restart that worker")
        for name, why in facts.unreadable.items()
    ]
    workers = list(facts.reports)
    for worker in workers[1:]:
        mine, theirs = facts.reports[workers[0]], facts.reports[worker]
        differ = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        if differ:
            fields = [key for key in differ if key != "namespace"] or differ
            seen = "; ".join(f"{key} is {mine.get(key)!r:.60} and {theirs.get(key)!r:.60}" for key in fields)
            needed = f"equal fields in {workers[0]} and {worker}, or they never read each other's blocks"
            found.append(Finding("keys-differ", seen, needed, f"make {', '.join(fields)} equal, then restart one"))
    return found


def _up(value: float) -> int:
    return int(-(-value // 1))


_RULES: tuple[Callable[[Facts], list[Finding]], ...] = (_wheels, _libraries, _transport, _store, _keys)

CODES = (
    "wheel-missing",
    "wheel-two",
    "wheel-release",
    "wheel-cuda",
    "library-missing",
    "checksum-missing",
    "rdma-missing",
    "rdma-memlock",
    "ports-open",
    "compiler-missing",
    "store-unreachable",
    "pool-missing",
    "lease-short",
    "pool-small",
    "report-unreadable",
    "keys-differ",
)
"""Every code that a finding may have."""
