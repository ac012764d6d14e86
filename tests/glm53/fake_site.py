"""A folder of installed distributions, with real metadata that importlib.metadata reads, and no code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glm53.doctor.host import Gpu, Host, Port
from glm53.doctor.inventory import Inventory
from glm53.doctor.plugins import PLUGINS

GIB = 1 << 30

#: What the metadata of ai-dynamo 1.6.1 says.
DYNAMO_REQUIRES = (
    "ai-dynamo-runtime==1.6.1",
    "transformers>=4.56.0",
    "nixl[cu13]==1.5.0; extra == 'sglang'",
    "nixl[cu13]==1.4.1; extra == 'vllm'",
    "vllm[flashinfer,otel,runai]==0.31.0; extra == 'vllm'",
)


class Site:
    """A folder like ``site-packages``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        name: str,
        version: str,
        requires: Sequence[str] = (),
        entries: Iterable[tuple[str, str]] = (),
        kind: str = "dist-info",
    ) -> Site:
        """Install a distribution in place of another version. kind: of metadata, ``dist-info`` or ``egg-info``."""
        self.remove(name)
        stem = name.replace("-", "_")
        place = self.folder / (f"{stem}-{version}.dist-info" if kind == "dist-info" else f"{stem}.egg-info")
        place.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        text = "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"
        (place / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(text)
        groups: dict[str, list[str]] = {}
        for group, entry in entries:
            groups.setdefault(group, []).append(f"{entry} = {entry}:register")
        points = "\n".join(f"[{group}]\n" + "\n".join(rows) for group, rows in sorted(groups.items()))
        (place / "entry_points.txt").write_text(points + "\n")
        return self

    def remove(self, name: str) -> Site:
        for place in self.folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
            for file in place.iterdir():
                file.unlink()
            place.rmdir()
        return self

    def file(self, path: str) -> Site:
        """An empty file of a package."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).touch()
        return self

    def read(self) -> Inventory:
        return Inventory.read([str(self.folder)])


def bundle_entries() -> list[tuple[str, str]]:
    return [entry for plugin in PLUGINS for entry in plugin.entries]


def serving_site(folder: Path) -> Site:
    """What a worker's image of Dynamo 1.6.1 with the bundle and Mooncake has, as far as the doctor looks."""
    site = Site(folder)
    site.add("ai-dynamo", "1.6.1", DYNAMO_REQUIRES).add("ai-dynamo-runtime", "1.6.1")
    site.add("vllm", "0.31.0", ("xgrammar==0.2.7", "flashinfer-python==0.7.0.post1", "torch>=2.13"))
    site.add("nixl", "1.4.1", ("nixl-cu13==1.4.1", "nixl-cu13==1.4.1; extra == 'cu13'")).add("nixl-cu13", "1.4.1")
    site.add("flashinfer-python", "0.7.0.post1").add("flashinfer-cubin", "0.7.0.post1")
    site.add("flashinfer-jit-cache", "0.7.0.post1+cu130").add("torch", "2.13.0+cu130").add("xgrammar", "0.2.7")
    site.add("mooncake-transfer-engine", "0.3.13.post1").add("glm53-blackwell", "0.1.0", (), bundle_entries())
    return site


def serving_host(**changes: Any) -> Host:
    """A node of HGX B200 as its tools describe it; a stand-in for hardware that no test machine has."""
    host = Host(
        name="node-a",
        machine="x86_64",
        python="3.12.3",
        cpus=192,
        memory=2048 * GIB,
        shm=64 * GIB,
        huge_pages=0,
        huge_page_bytes=2 << 20,
        locked=-1,
        open_files=1 << 20,
        gpus=tuple([Gpu("NVIDIA B200", 183_359 << 20, (10, 0), "580.95.05")] * 8),
        gpu_devices=8,
        ports=tuple(Port(f"mlx5_{index}", 1, True, "InfiniBand", "400 Gb/sec (4X NDR)") for index in range(8)),
    )
    return replace(host, **changes)
