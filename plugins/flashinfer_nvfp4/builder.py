"""The metadata of a batch for layers that keep NVFP4 rows: stock's, without what belongs to its kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport

from flashinfer_nvfp4.stock import stock_builder

__all__ = ["RowsMetadataBuilder"]

_Shared, _Sm100 = stock_builder()


class RowsMetadataBuilder(_Sm100):  # type: ignore[misc, valid-type]
    """Builds stock's metadata. Decode batches of any query lengths can be replayed from a CUDA graph, because decode
    reads each token's request, block table and index row from the device alone; prefill is planned on the host."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        # Not the class between: it reserves TRTLLM-gen's workspace, of 394 MiB and more, for parallel decode.
        _Shared.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        self.supports_draft_decode_metadata_update = (
            "update_draft_decode_metadata" in vars(_Sm100) and self.dcp_world_size == 1
        )
