"""Sparse MLA on nvfp4_ds_mla rows, which the Triton kernel reads where they lie."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.config.cache import CacheDType
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder, MultipleOf
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import (
    FlashInferMLASparseMetadataBuilder,
    FlashInferMLASparseTRTLLMMetadataBuilder,
)
from vllm.v1.attention.ops.nvfp4_mla.limits import TRITON_MAJORS, triton_unfit
from vllm.v1.attention.ops.nvfp4_mla.refusals import Deployment, refusal
from vllm.v1.kv_cache_interface import AttentionSpec


class Nvfp4MLASparseMetadataBuilder(FlashInferMLASparseTRTLLMMetadataBuilder):
    """The metadata of other sparse backends. Decode batches of any query lengths can be replayed from a CUDA graph,
    because decode reads each token's request, block table and index row from the device alone; prefill is planned on
    the host."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        # Not the class between: it reserves TRTLLM-gen's workspace for decode context parallelism.
        FlashInferMLASparseMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        updates = type(self).update_draft_decode_metadata
        self.supports_draft_decode_metadata_update = (
            updates is not AttentionMetadataBuilder.update_draft_decode_metadata and self.dcp_world_size == 1
        )


class Nvfp4MLASparseBackend(AttentionBackend):
    """Reads the rows on compute capability 9.x, 10.x and 12.x, for 1 to 128 heads, with the log-sum-exp that decode
    context parallelism merges by. On 10.x FlashMLA reads them, too, and comes first."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[CacheDType]] = ["nvfp4_ds_mla"]

    @staticmethod
    def get_name() -> str:
        return "TRITON_MLA_SPARSE_NVFP4"

    @staticmethod
    def get_impl_cls() -> Any:
        from vllm.v1.attention.backends.mla.nvfp4_mla_sparse_impl import Nvfp4MLASparseImpl

        return Nvfp4MLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[Nvfp4MLASparseMetadataBuilder]:
        return Nvfp4MLASparseMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [64]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: CacheDType | None) -> bool:
        return kv_cache_dtype in cls.supported_kv_cache_dtypes

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return capability.major in TRITON_MAJORS

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        return replace(spec, block_stride_alignment=spec.state_content_size_bytes)

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: CacheDType | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if config.model_config is None:
            return None
        facts = Deployment.of(config, dtype, has_sink)
        if (why := refusal(facts)) is not None:
            return why
        parallel = config.parallel_config
        heads = config.model_config.get_num_attention_heads(parallel) * parallel.decode_context_parallel_size
        unfit = triton_unfit((device_capability.major, device_capability.minor), heads, facts.topk or 0)
        return unfit or None
