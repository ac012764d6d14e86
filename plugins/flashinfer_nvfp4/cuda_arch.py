"""The GPU architectures that the CUDA kernels in ``csrc/`` are compiled for, and what each compile is told.

A thread block keeps three stages of float16 keys in shared memory. The limit is 227 KiB a block on compute capability
9.0, 10.0 and 10.3, enough for stages of 32 keys, and 99 KiB on 12.0, where a stage has 16. 12.0 also has no clusters
of several blocks, so there a second kernel merges what they leave in global memory. e2m1 conversion instructions exist
in 10.0, 10.3 and 12.0. Source: CUDA C++ Programming Guide, technical specifications; PTX ISA, cvt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.plan import CLUSTER_SIZES, MAX_SPLITS
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

__all__ = ["ARCHITECTURES", "CSRC", "HEADS", "KERNELS", "PART_BYTES", "SOURCES", "Architecture", "architecture_for"]

CSRC = Path(__file__).parent / "csrc"
KERNELS = ("launch.cu", "encode.cu")
"""Sources with kernels; the others are what Python calls."""
SOURCES = (*KERNELS, "binding.cu", "encode_binding.cu")

HEADS = 16
"""Heads of one thread block: the rows of an mma tile."""
SLOTS = 3
RAW_SLOTS = 4
PART_BYTES = HEADS * (4 * LATENT + 8)
"""What a block leaves in global memory for the merge kernel: float32 sums, and two numbers a head."""
GROUP_WARPS = 4
"""Warps that score, and as many that add up values; further ones unpack four rows of a stage each."""


@dataclass(frozen=True)
class Architecture:
    """What the kernels are on one architecture. ``limit``: most shared bytes of a block that the device has."""

    name: str
    capability: tuple[int, int]
    keys: int
    clusters: bool
    hardware_e2m1: bool
    limit: int

    @property
    def threads(self) -> int:
        return 32 * (self.keys // 4 + 2 * GROUP_WARPS)

    @property
    def registers(self) -> int:
        """Most registers of a thread, a multiple of 8, with which one block fits the 65,536 of a multiprocessor."""
        return min(255, 65_536 // self.threads // 8 * 8)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a decode block, the sum of csrc/shared.h; the compile fails where it is another."""
        slot = self.keys * 2 * (LATENT + ROPE + 8) + HEADS * 2 * (self.keys + 8) + HEADS * 4
        partial = 2 * GROUP_WARPS * HEADS * 4 * (self.keys + 8)
        small = HEADS * 8 + HEADS * 4 + 3 * SLOTS * 8
        total = SLOTS * slot + RAW_SLOTS * self.keys * ROW_BYTES + partial + small
        return -(-total // 16) * 16

    @property
    def most_ctas(self) -> int:
        """Thread blocks that may share a token's keys: the portable cluster, or what is left to the merge kernel."""
        return CLUSTER_SIZES[-1] if self.clusters else MAX_SPLITS

    @property
    def flags(self) -> list[str]:
        """nvcc's flags beside language level, optimisation and includes."""
        compute = self.name.removeprefix("sm_")
        return [
            f"-gencode=arch=compute_{compute},code={self.name}",
            f"-DNVFP4_KEYS={self.keys}",
            f"-DNVFP4_CLUSTERS={int(self.clusters)}",
            f"-DNVFP4_SHARED_BYTES={self.shared_bytes}",
            f"-DNVFP4_PART_BYTES={PART_BYTES}",
        ]

    @property
    def instructions(self) -> Mapping[str, int]:
        """Instructions of a decode kernel: mma for 36 steps of 16 columns and 64 columns of 8, for all keys of a
        stage; four conversions for each of the eight words of a row that a lane unpacks."""
        return {
            "mma": (LATENT + ROPE) // 16 // GROUP_WARPS * (self.keys // 8)
            + LATENT // 8 // GROUP_WARPS * (self.keys // 16),
            "e2m1": 32 if self.hardware_e2m1 else 0,
        }


ARCHITECTURES = {
    arch.name: arch
    for arch in (
        Architecture("sm_90a", (9, 0), 32, clusters=True, hardware_e2m1=False, limit=232_448),
        Architecture("sm_100a", (10, 0), 32, clusters=True, hardware_e2m1=True, limit=232_448),
        Architecture("sm_103a", (10, 3), 32, clusters=True, hardware_e2m1=True, limit=232_448),
        Architecture("sm_120a", (12, 0), 16, clusters=False, hardware_e2m1=True, limit=101_376),
    )
}


def architecture_for(capability: tuple[int, int]) -> Architecture:
    """The architecture of a device with this compute capability; raises `BuildRefused` where there is none."""
    for arch in ARCHITECTURES.values():
        if arch.capability == capability:
            return arch
    known = ", ".join(f"{major}.{minor}" for major, minor in (arch.capability for arch in ARCHITECTURES.values()))
    raise BuildRefused(
        f"compute capability {capability[0]}.{capability[1]}",
        "the CUDA kernels are compiled for exact architectures",
        known,
        "Use the Triton kernels",
    )
