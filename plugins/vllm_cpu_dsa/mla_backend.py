"""vLLM's view of the sparse MLA attention: an attention backend whose every token takes the top-k path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MLAAttentionImpl,
)

from vllm_cpu_dsa.attention import attend, store_rows
from vllm_cpu_dsa.guards import BLOCK_SIZE
from vllm_cpu_dsa.paged import PagedBatch
from vllm_cpu_dsa.rows import LATENT, ROPE, row_format

__all__ = ["CpuSparseMLABackend"]


class CpuSparseMLABackend(AttentionBackend):
    """Sparse MLA in plain torch; rows of the cache may lie at any block stride."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        return "CPU_MLA_SPARSE"

    @staticmethod
    def get_builder_cls() -> type[CpuSparseMLABuilder]:
        return CpuSparseMLABuilder

    @staticmethod
    def get_impl_cls() -> type[CpuSparseMLAImpl]:
        return CpuSparseMLAImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [BLOCK_SIZE]  # the indexer's, with which every page here shares its blocks

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [LATENT + ROPE]

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        row_format(kv_cache_dtype or "auto")
        return True

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Give the spec the row size of the format, and blocks a stride of whole rows.

        The GPU's sparse backends index rows, not bytes, and publish the same alignment, so a block-outermost
        row of this backend has the size that theirs has.
        """
        row_bytes = row_format(spec.cache_dtype_str).row_bytes
        if row_bytes is not None:
            spec = replace(spec, dtype=torch.uint8, state_content_bytes=row_bytes)
        return replace(spec, block_stride_alignment=spec.state_content_size_bytes)


@dataclass
class CpuSparseMLAMetadata(AttentionMetadata):
    """One step's batch, with the counters that vLLM's MLA layer reads: every token goes to `forward_mqa`."""

    batch: PagedBatch
    num_actual_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0


class CpuSparseMLABuilder(AttentionMetadataBuilder[CpuSparseMLAMetadata]):
    """Builds the batch from vLLM's common metadata."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CpuSparseMLAMetadata:
        return CpuSparseMLAMetadata(
            batch=paged_batch(common_attn_metadata),
            num_actual_tokens=common_attn_metadata.num_actual_tokens,
            num_decodes=common_attn_metadata.num_reqs,
            num_decode_tokens=common_attn_metadata.num_actual_tokens,
        )


def paged_batch(common: CommonAttentionMetadata) -> PagedBatch:
    """The batch that vLLM's common metadata describes."""
    count = common.num_reqs
    return PagedBatch.of(
        common.query_start_loc_cpu[: count + 1].tolist(),
        common.seq_lens[:count].tolist(),
        common.block_table_tensor,
    )


class CpuSparseMLAImpl(SharedTopkIndicesBuffer, MLAAttentionImpl[CpuSparseMLAMetadata]):
    """One layer's attention. The selection comes from the buffer that the layer's indexer, or with
    IndexShare the last indexer before it, has written in the same step."""

    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        topk_indices_buffer: torch.Tensor | None = None,
        indexer: object | None = None,
        **mla_args: Any,
    ) -> None:
        self.scale = scale
        self.rows = row_format(kv_cache_dtype)
        self.init_topk_indices_buffer(indexer, topk_indices_buffer)

    def record_logical_topk_ready(self) -> None:
        """vLLM's signal that the selection is complete; on the CPU nothing runs beside it."""

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        *unused: Any,
    ) -> None:
        """Write the rows of one step; called before `forward_mqa`. vLLM 0.33 adds a flag for FP8 rows."""
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten().long()
        count = len(slots)
        store_rows(self._row_view(kv_cache), slots, kv_c_normed[:count], k_pe[:count].reshape(count, -1), self.rows)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: CpuSparseMLAMetadata,
        layer: object,
    ) -> tuple[torch.Tensor, None]:
        """Attention of all tokens, [tokens, heads, 512], without the log-sum-exp of context parallelism."""
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        selected = self.topk_indices_buffer
        assert selected is not None
        out = q.new_zeros(q.shape[0], q.shape[1], LATENT)
        attend(
            self._row_view(kv_c_and_k_pe_cache),
            attn_metadata.batch,
            q,
            selected[: q.shape[0]],
            self.scale,
            self.rows,
            out,
        )
        return out, None

    def _row_view(self, cache: torch.Tensor) -> torch.Tensor:
        # vLLM's MLA layer hands an FP8-named cache over as FP8; encoded rows are bytes.
        return cache if self.rows.row_bytes is None else cache.view(torch.uint8)
