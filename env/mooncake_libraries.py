"""Mooncake's libraries link to libibverbs, libnuma and libcurl, which not every machine has: lend them NIXL's copies.

Only links inside the environment, and only for what the machine's own loader does not find, so that a machine with
RDMA keeps its own libraries and their device drivers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

# What Mooncake needs of the system -> names of the copy, and of what the copy needs, in NIXL's folder.
LENT = {
    "libibverbs.so.1": ("libibverbs-", "libnl-3-", "libnl-route-3-"),
    "libnuma.so.1": ("libnuma-",),
    "libcurl.so.4": ("libcurl-", "libzstd-"),
}


def loads(name: str) -> bool:
    """Tell whether the dynamic loader finds this library on the machine."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def lend(packages: Path, found: Callable[[str], bool] = loads) -> list[str]:
    """Link what the machine lacks into the folder where Mooncake looks first; return the names that were linked.

    packages: the folder that the environment imports from. Does nothing where either wheel is missing.
    """
    takers = sorted(packages.glob("mooncake_transfer_engine*.libs"))
    lenders = sorted(packages.glob("nixl_cu*.libs"))
    if not takers or not lenders:
        return []
    lent = []
    for name, (copy, *needed) in LENT.items():
        sources = [file for stem in (copy, *needed) for file in sorted(lenders[0].glob(f"{stem}*.so*"))]
        if found(name) or not any(file.name.startswith(copy) for file in sources):
            continue
        for file in sources:
            _link(takers[0] / (name if file.name.startswith(copy) else file.name), file)
        lent.append(name)
    return lent


def _link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(Path("..") / target.parent.name / target.name)
