"""vLLM's tiering offload on the CPU platform, where stock has no worker: blocks are copied by torch.

Chosen by ``"spec_name": "CpuTieringSpec", "spec_module_path": "mooncake_tier.cpu_platform"``. It is for tests and for
trying things out: blocks move from one piece of host memory to another.
"""

from __future__ import annotations

import time
from typing import Any

from mooncake_tier.vllm_stock import VLLM

VLLM.require()  # Before the imports below: on a release that moved them, the reader needs to see why.

import torch  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402

__all__ = ["CpuTieringSpec", "CpuWorker"]


class CpuWorker(OffloadingWorker):
    """Copies when it is asked to, so a job is finished when it was submitted.

    caches: one view for each tensor of the model, (blocks, page bytes), int8. region: the host memory of all workers,
    in which a chunk holds `blocks_per_chunk` pages of each tensor, tensor after tensor.
    """

    def __init__(self, caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._blocks_per_chunk, self._region = blocks_per_chunk, region
        self._groups = [sorted({ref.tensor_idx for ref in refs}) for refs in caches.group_data_refs]
        self._blocks = [one.tensor.view(torch.int8).flatten(1) for one in caches.tensors]
        self._chunks = []
        for one in caches.tensors:
            view = region.create_next_worker_view(one.page_size_bytes * blocks_per_chunk)
            self._chunks.append(view.unflatten(1, (blocks_per_chunk, one.page_size_bytes)))
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        done, self._finished = self._finished, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Every job is finished when it was submitted."""

    def shutdown(self) -> None:
        self._chunks.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, blocks: GPULoadStoreSpec, chunks: Any, to_host: bool) -> bool:
        """The first block of a group may lie inside its chunk; later chunks begin with their first block."""
        began, nbytes = time.monotonic(), 0
        block_ids, chunk_ids = torch.as_tensor(blocks.block_ids).long(), torch.as_tensor(chunks.block_ids).long()
        for tensors, size, first in zip(self._groups, blocks.group_sizes, blocks.block_indices, strict=True):
            if not size:
                continue
            at = torch.arange(size) + first % self._blocks_per_chunk
            number = int(at[-1]) // self._blocks_per_chunk + 1
            mine, block_ids = block_ids[:size], block_ids[size:]
            theirs, chunk_ids = chunk_ids[:number][at // self._blocks_per_chunk], chunk_ids[number:]
            for tensor in tensors:
                block, chunk = self._blocks[tensor], self._chunks[tensor]
                if to_host:
                    chunk[theirs, at % self._blocks_per_chunk] = block[mine]
                else:
                    block[mine] = chunk[theirs, at % self._blocks_per_chunk]
                nbytes += size * block.shape[1]
        self._finished.append(TransferResult(job_id, True, nbytes, time.monotonic() - began))
        return True


class CpuTieringSpec(TieringOffloadingSpec):
    """`TieringOffloadingSpec` whose worker runs on the CPU."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CpuWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
