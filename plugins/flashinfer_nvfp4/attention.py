"""What vLLM's layers with NVFP4 rows call: attention by the kernel that this package chooses, and its own writer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config

from flashinfer_nvfp4 import context_gather, folding, reloading, writer
from flashinfer_nvfp4.decoder import Decoder
from flashinfer_nvfp4.device import trtllm_workspace
from flashinfer_nvfp4.kernel_choice import kernel_for
from flashinfer_nvfp4.launch import decoder_of
from flashinfer_nvfp4.rowformat import LATENT
from flashinfer_nvfp4.rows_attention import Nvfp4MLASparseImpl
from flashinfer_nvfp4.trtllm import TrtllmRows

__all__ = ["SparseRowsImpl"]


class SparseRowsImpl(Nvfp4MLASparseImpl):
    """One layer's attention, for every kernel and architecture."""

    keeps_nvfp4_rows: ClassVar[bool] = True

    def __init__(self, num_heads: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_heads, *args, **kwargs)
        topk = self.topk_indices_buffer
        assert topk is not None
        self.choice = kernel_for(num_heads * self.dcp_world_size, topk.shape[1], self.need_to_return_lse_for_decode)
        self.supports_quant_query_input = self.choice.fp8_query
        writer.activate(cuda=self.choice.kernel == "cuda")
        context_gather.activate()
        folding.activate()

    def decoder_of(self, scale: float, device: torch.device) -> Decoder:
        """The chosen kernel's."""
        assert self.choice.kernel is not None
        copied = None
        if self.choice.kernel == "gather":
            copied = TrtllmRows(scale, self.qk_nope_head_dim, trtllm_workspace(device))
        return decoder_of(self.choice.kernel, scale, self.need_to_return_lse_for_decode, copied)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Compile and build what decoding needs, before anything is captured. Raises `FoldRefused` for weights that
        were loaded again and not folded."""
        reloading.require_followed(self.kv_b_proj)
        super().process_weights_after_loading(act_dtype)

    def warm_up(self, decoder: Decoder, heads: int, device: torch.device) -> None:
        """Run every kernel of attention and the writer's once."""
        super().warm_up(decoder, heads, device)
        writer.warm_up(device, get_current_vllm_config().cache_config.block_size)

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
