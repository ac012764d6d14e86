"""vLLM's view of the DSA indexer: its cache's attention backend and the layer that scores and selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend, DeepseekV32IndexerMetadata

from vllm_cpu_dsa.indexer import select, store_keys
from vllm_cpu_dsa.mla_backend import paged_batch
from vllm_cpu_dsa.paged import PagedBatch

__all__ = ["CpuIndexerBackend", "CpuSparseAttnIndexer", "index_step", "step_of"]


class CpuIndexerBackend(DeepseekV32IndexerBackend):
    """The stock indexer backend, name and page format included, with metadata for plain torch."""

    @staticmethod
    def get_builder_cls() -> type[CpuIndexerBuilder]:
        return CpuIndexerBuilder


@dataclass
class CpuIndexerMetadata(DeepseekV32IndexerMetadata):
    """The stock fields that vLLM reads by name, and the batch that the CPU indexer works on."""

    batch: PagedBatch | None = None


class CpuIndexerBuilder(AttentionMetadataBuilder[Any]):
    """Builds the batch from vLLM's common metadata."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CpuIndexerMetadata:
        common = common_attn_metadata
        return CpuIndexerMetadata(
            seq_lens=common.seq_lens,
            max_seq_len=common.max_seq_len,
            slot_mapping=common.slot_mapping,
            num_decodes=0,
            num_decode_tokens=0,
            num_prefills=common.num_reqs,
            num_prefill_tokens=common.num_actual_tokens,
            batch=paged_batch(common),
        )


def step_of(layer: Any) -> CpuIndexerMetadata | None:
    """What there is to do for this indexer; None in the pass without a batch by which vLLM sizes its memory, and for
    an indexer of another kind."""
    metadata = get_forward_context().attn_metadata
    found = metadata[layer.k_cache.prefix] if isinstance(metadata, dict) else None
    return found if isinstance(found, CpuIndexerMetadata) else None


def index_step(
    layer: Any,
    step: CpuIndexerMetadata,
    hidden_states: torch.Tensor,
    q_quant: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Store a step's keys and write each token's selection to the layers' shared buffer, which is returned.

    hidden_states: [tokens, any]. q_quant: FP8 [tokens, heads, 128]. k: [tokens, 128]. weights: [tokens, heads].
    """
    assert step.batch is not None
    count = len(step.slot_mapping)
    store_keys(layer.k_cache.kv_cache, step.slot_mapping.long(), k[:count])
    out = layer.topk_indices_buffer[: len(hidden_states)]
    select(layer.k_cache.kv_cache, step.batch, q_quant, weights, layer.topk_tokens, out)
    return layer.topk_indices_buffer


class CpuSparseAttnIndexer(SparseAttnIndexer):
    """Takes the stock layer's place wherever vLLM builds one (vLLM's out-of-tree layer registry)."""

    def forward_cpu(
        self, hidden_states: torch.Tensor, q_quant: torch.Tensor, k: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """The selection in plain torch; what is not ours to select goes to stock."""
        step = step_of(self)
        if step is None:
            return super().forward_cpu(hidden_states, q_quant, k, weights)
        return index_step(self, step, hidden_states, q_quant, k, weights)

    forward_native = forward_cpu
