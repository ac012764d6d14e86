"""Sparse MLA attention of one vLLM layer on a cache of NVFP4 rows, by the Triton kernel."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.sparse_mla_attention import SparseMLACommonImpl
from vllm.v1.attention.backends.mla.sparse_utils import flat_kv_row_view, triton_filter_and_convert_dcp_index

from flashinfer_nvfp4.decoder import Decoder, TritonDecoder
from flashinfer_nvfp4.device import capability
from flashinfer_nvfp4.rowformat import LATENT
from flashinfer_nvfp4.staging import Staging, make_staging, plan_staging
from flashinfer_nvfp4.workspace import Layout

__all__ = ["Nvfp4MLASparseImpl"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")
_warm: set[tuple[type, int, int, bool]] = set()


class Nvfp4MLASparseImpl(SparseMLACommonImpl[Any]):
    """One layer's attention.

    The cache is read as flat rows. Row ids come from vLLM's conversion, so a layout with other layers' pages between
    the blocks is only a larger distance between them, and -1 stays -1.
    """

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    lse_base_on_e: bool = True
    """The kernels' log-sum-exp is natural, and vLLM's merge is told so."""

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
        indexer: Any = None,
        **mla: Any,
    ) -> None:
        if alibi_slopes or sliding_window or logits_soft_cap or attn_type != "decoder":
            raise NotImplementedError(
                f"alibi_slopes={alibi_slopes}, sliding_window={sliding_window}, logits_soft_cap={logits_soft_cap}, "
                f"attn_type={attn_type!r}: sparse MLA on NVFP4 rows has none of them; allowed: none, and 'decoder'. "
                "Serve this model with another --kv-cache-dtype."
            )
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            indexer=indexer,
            topk_indices_buffer=topk_indices_buffer,
            **mla,
        )
        assert self.topk_indices_buffer is not None
        self.supports_quant_query_input = False
        self.decoder: Decoder | None = None
        topk = self.topk_indices_buffer.shape[1]
        self.layout, why = plan_staging(capability(), self.num_heads, topk, self.dcp_world_size)
        _tell_prefill(self.layout is not None, why)
        self.staging: Staging | None = None
        # As vLLM's backend of 12.0, whose prefill backends have no kernels for these dimensions.
        self.supports_dense_mha_prefill = capability()[0] != 12

    @property
    def takes_fp8_queries(self) -> bool:
        """Whether decode takes its query in e4m3, or staged prefill rounds it to that."""
        return self.supports_quant_query_input or self.layout is not None

    def decoder_of(self, scale: float, device: torch.device) -> Decoder:
        """What decodes; ``scale``: of ``query @ key``, an FP8 query's own in it."""
        return TritonDecoder(scale, self.need_to_return_lse_for_decode)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Compile and build what decoding needs, before anything is captured, once for each shape in a process."""
        super().process_weights_after_loading(act_dtype)
        buffer = self.topk_indices_buffer
        assert buffer is not None
        if buffer.device.type == "cuda":
            heads, topk = self.num_heads * self.dcp_world_size, buffer.shape[1]
            decoder = self.decoder_of(self.scale, buffer.device)
            if (key := (type(decoder), heads, topk, decoder.lse)) not in _warm:
                self.warm_up(decoder, heads, buffer.device)
                _warm.add(key)

    def warm_up(self, decoder: Decoder, heads: int, device: torch.device) -> None:
        """Run every kernel of launches with ``heads`` heads once."""
        assert self.topk_indices_buffer is not None
        dtype = torch.float8_e4m3fn if self.supports_quant_query_input else torch.bfloat16
        decoder.warm_up(heads, self.topk_indices_buffer.shape[1], dtype, device)
        if self.layout is not None:
            block_size = get_current_vllm_config().cache_config.block_size
            self._staging_of(self.layout, decoder, device).warm_up(block_size, dtype, device)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output [tokens, heads, 512] and, for parallel decode, the log-sum-exp, of all tokens that are in ``q``.

        Drafts and prefill are further tokens, each with its own index row.
        """
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decoder = self._decoder(layer, query.device)
        decodes = attn_metadata.num_decode_tokens
        if self.staging is not None and query.shape[0] > decodes and (tables := self.staging.tables(attn_metadata)):
            out = query.new_empty((*query.shape[:2], LATENT), dtype=torch.bfloat16)
            if decodes:
                out[:decodes] = self._attend(decoder, query[:decodes], kv_c_and_k_pe_cache, attn_metadata)[0]
            topk = self.topk_indices_buffer
            self.staging.attend(tables, decoder, query, kv_c_and_k_pe_cache, topk, attn_metadata, out)
            return out, None
        return self._attend(decoder, query, kv_c_and_k_pe_cache, attn_metadata)

    def _attend(
        self, decoder: Decoder, query: torch.Tensor, cache: torch.Tensor, metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The batch's first tokens, on rows where they lie."""
        rows, stride = flat_kv_row_view(cache, metadata.block_size)
        indices, counts = self._row_ids(metadata, query.shape[0], stride, decoder.wants_counts)
        return decoder(query, rows, indices, counts)

    def _decoder(self, layer: Any, device: torch.device) -> Decoder:
        if self.decoder is None:
            scale = self.scale * (layer._q_scale_float if self.supports_quant_query_input else 1.0)
            self.decoder = self.decoder_of(scale, device)
            if self.layout is not None:
                self.staging = self._staging_of(self.layout, self.decoder, device)
        return self.decoder

    def _staging_of(self, layout: Layout, decoder: Decoder, device: torch.device) -> Staging:
        return make_staging(layout, decoder.scale, self.qk_nope_head_dim, device)

    def _row_ids(
        self, metadata: Any, tokens: int, stride: int, counted: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Flat row ids, int32 [tokens, topk], of the tokens' keys in this worker's shard, and if ``counted`` how many
        stand at the front of each row."""
        assert self.topk_indices_buffer is not None
        topk = self.topk_indices_buffer[:tokens]
        if self.dcp_world_size > 1:
            found = triton_filter_and_convert_dcp_index(
                metadata.req_id_per_token[:tokens],
                metadata.block_table,
                topk,
                dcp_size=self.dcp_world_size,
                dcp_rank=self.dcp_rank,
                cp_kv_cache_interleave_size=metadata.cp_kv_cache_interleave_size,
                BLOCK_SIZE=metadata.block_size,
                BLOCK_STRIDE_ROWS=stride,
                NUM_TOPK_TOKENS=topk.shape[1],
                return_valid_counts=counted,
                compact_valid_to_front=counted,
            )
        else:
            found = self._convert_logical_to_physical_topk(
                topk, metadata, block_stride_rows=stride, return_valid_counts=counted
            )
        return found if counted else (found, None)


@functools.cache
def _tell_prefill(staged: bool, why: str) -> None:
    _log.info("flashinfer_nvfp4: prefill %s (%s)", "stages rows where that is cheaper" if staged else "is direct", why)
