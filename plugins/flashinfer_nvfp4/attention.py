"""Sparse MLA attention on a cache of NVFP4 rows: what vLLM's layers call."""

from __future__ import annotations

import functools
import logging
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.sparse_mla_attention import SparseMLACommonImpl
from vllm.v1.attention.backends.mla.sparse_utils import flat_kv_row_view, triton_filter_and_convert_dcp_index

from flashinfer_nvfp4 import context_gather, folding, reloading, writer
from flashinfer_nvfp4.dispatch import Choice
from flashinfer_nvfp4.kernel_choice import kernel_for
from flashinfer_nvfp4.launch import Decoder
from flashinfer_nvfp4.rowformat import LATENT
from flashinfer_nvfp4.staging import Staging, make_staging, plan_staging
from flashinfer_nvfp4.stock import capability, stock_workspace
from flashinfer_nvfp4.trtllm import TrtllmRows
from flashinfer_nvfp4.workspace import Layout

__all__ = ["SparseRowsImpl"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")
_warm: set[tuple[Choice, int, int, bool]] = set()


class SparseRowsImpl(SparseMLACommonImpl[Any]):
    """One layer's attention, for every kernel and architecture.

    The cache is read as flat rows. Row ids come from stock's conversion, so a layout with other layers' pages between
    the blocks is only a larger distance between them, and -1 stays -1.
    """

    keeps_nvfp4_rows: ClassVar[bool] = True
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    lse_base_on_e: bool = True
    """The kernels' log-sum-exp is natural, and stock's merge is told so."""

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
        lse = self.need_to_return_lse_for_decode
        self.choice = kernel_for(num_heads * self.dcp_world_size, self.topk_indices_buffer.shape[1], lse)
        self.supports_quant_query_input = self.choice.fp8_query
        self.decoder: Decoder | None = None
        self.layout = self._plan_staging()
        self.staging: Staging | None = None
        # As stock's backend of 12.0, whose prefill backends have no kernels for these dimensions.
        self.supports_dense_mha_prefill = capability()[0] != 12
        writer.activate(cuda=self.choice.kernel == "cuda")
        context_gather.activate()
        folding.activate()

    @property
    def takes_fp8_queries(self) -> bool:
        """Whether decode takes its query in e4m3, or staged prefill rounds it to that."""
        return self.choice.fp8_query or self.layout is not None

    def _plan_staging(self) -> Layout | None:
        assert self.topk_indices_buffer is not None
        topk = self.topk_indices_buffer.shape[1]
        layout, why = plan_staging(capability(), self.num_heads, topk, self.dcp_world_size)
        _tell_prefill(layout is not None, why)
        return layout

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Compile and build what decoding needs, before anything is captured. Raises `FoldRefused` for weights that
        were loaded again and not folded."""
        super().process_weights_after_loading(act_dtype)
        reloading.require_followed(self.kv_b_proj)
        buffer = self.topk_indices_buffer
        assert buffer is not None
        if buffer.device.type == "cuda":
            self._warm_up(buffer)

    def _warm_up(self, buffer: torch.Tensor) -> None:
        """Once for each shape in a process."""
        heads, topk = self.num_heads * self.dcp_world_size, buffer.shape[1]
        key = (self.choice, heads, topk, self.need_to_return_lse_for_decode)
        if key in _warm:
            return
        dtype = torch.float8_e4m3fn if self.choice.fp8_query else torch.bfloat16
        decoder = self._decoder_of(1.0, buffer.device)
        block_size = get_current_vllm_config().cache_config.block_size
        decoder.warm_up(heads, topk, dtype, buffer.device)
        if self.layout is not None:
            self._staging_of(self.layout, decoder, buffer.device).warm_up(block_size, dtype, buffer.device)
        writer.warm_up(buffer.device, block_size)
        _warm.add(key)

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
            self.decoder = self._decoder_of(layer._q_scale_float if self.choice.fp8_query else 1.0, device)
            if self.layout is not None:
                self.staging = self._staging_of(self.layout, self.decoder, device)
        return self.decoder

    def _staging_of(self, layout: Layout, decoder: Decoder, device: torch.device) -> Staging:
        return make_staging(layout, decoder.scale, self.qk_nope_head_dim, device)

    def _decoder_of(self, query_scale: float, device: torch.device) -> Decoder:
        assert self.choice.kernel is not None
        scale = self.scale * query_scale
        copied = None
        if self.choice.kernel == "gather":
            copied = TrtllmRows(scale, self.qk_nope_head_dim, stock_workspace(device))
        return Decoder(self.choice.kernel, scale, self.need_to_return_lse_for_decode, copied)

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

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Write rows where the model's fused path does not. ``k_pe`` [tokens, 1, 64]; the scales are the rows' own."""
        if kv_cache.numel():
            writer.write(kv_c_normed.view(-1, LATENT), k_pe.squeeze(1), kv_cache, slot_mapping.flatten())


@functools.cache
def _tell_prefill(staged: bool, why: str) -> None:
    _log.info("flashinfer_nvfp4: prefill %s (%s)", "stages rows where that is cheaper" if staged else "is direct", why)
