"""Facts that recipes build on and cannot choose: machines, and which releases belong together."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DENSE_BYTES", "HARDWARE", "RELEASES", "TIER_LEASE_S", "WEIGHT_BYTES", "Hardware", "Release", "wrong_lease"]


@dataclass(frozen=True)
class Hardware:
    """One kind of machine.

    gpus: GPUs a node; 0 is a machine without. gpu_bytes: memory of one, as its data sheet has it.
    capability: CUDA compute capability. nvlink_nodes: nodes that share one NVLink domain.
    architecture: of the node's CPU, as container images name it.
    """

    gpus: int
    gpu_bytes: int
    capability: tuple[int, int]
    nvlink_nodes: int
    architecture: str

    @property
    def blackwell(self) -> bool:
        """Whether kernels for data-centre Blackwell (compute capability 10.x) run here."""
        return self.capability[0] == 10


_GB = 10**9

#: Memory: NVIDIA's data sheets of GB200 NVL72 (186 GB), HGX B200 (180 GB), HGX B300 (270 GB) and H200 (141 GB).
HARDWARE = {
    "cpu": Hardware(0, 0, (0, 0), 1, "amd64"),
    "gb200-nvl72": Hardware(4, 186 * _GB, (10, 0), 18, "arm64"),
    "b200": Hardware(8, 180 * _GB, (10, 0), 1, "amd64"),
    "b300": Hardware(8, 270 * _GB, (10, 3), 1, "amd64"),
    "h200": Hardware(8, 141 * _GB, (9, 0), 1, "amd64"),
}


@dataclass(frozen=True)
class Release:
    """What one release of Dynamo pins (its package metadata), and the Mooncake release that is served with it."""

    vllm: str
    nixl: str
    mooncake: str

    @property
    def vllm_line(self) -> str:
        """``0.31`` of ``0.31.0``."""
        return self.vllm.rpartition(".")[0]


#: Release of Dynamo -> what belongs to it. Images carry the same number as their tag.
RELEASES = {"1.6.1": Release(vllm="0.31.0", nixl="1.4.1", mooncake="0.3.13.post1")}

#: Seconds that a lease of the DRAM tier may last. Engines renew it until they have loaded the block.
TIER_LEASE_S = range(10, 601)


def wrong_lease(seconds: float) -> str | None:
    """Why the DRAM tier's leases must not last so long or so short; None if they may."""
    if seconds < TIER_LEASE_S.start:
        return "blocks that were found could be evicted before they are loaded"
    if seconds >= TIER_LEASE_S.stop:
        return "what was found is not evicted for so long, and a full pool refuses new blocks"
    return None


#: Bytes of GLM-5.3's weights by how they are stored, prediction layer included: 753.3 billion parameters (bf16, fp8),
#: and the published size of the NVFP4 checkpoint.
WEIGHT_BYTES = {"bf16": 1_506 * _GB, "fp8": 753 * _GB, "nvfp4": 465 * _GB}

#: Bytes of those weights that are not in routed experts, and that expert parallelism therefore does not divide: 18.9 of
#: the 753.3 billion parameters that GLM-5.3's published dimensions make with the prediction layer, whose 9.7 billion of
#: routed experts are divided like the others. The NVFP4 checkpoint has all but the 75 layers' experts in 16 bits.
DENSE_BYTES = {"bf16": 38 * _GB, "fp8": 19 * _GB, "nvfp4": 38 * _GB}
