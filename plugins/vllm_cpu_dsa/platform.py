"""The CPU platform of vLLM, with sparse MLA."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

from vllm.platforms.cpu import CpuPlatform
from vllm.utils.cpu_resource_utils import get_visible_memory_node

from vllm_cpu_dsa.guards import is_served
from vllm_cpu_dsa.settle import Kept, without_compiled_rotary

__all__ = ["CpuDsaPlatform"]

# A child of vLLM's logger, so that the line appears among vLLM's own.
_log = logging.getLogger("vllm.vllm_cpu_dsa")


class CpuDsaPlatform(CpuPlatform):
    """`CpuPlatform` that serves models with a DSA indexer; every other model gets what stock gives it."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> str:
        if attn_selector_config.use_sparse:
            from vllm.config import get_current_vllm_config

            if is_served(get_current_vllm_config().model_config):
                return "vllm_cpu_dsa.mla_backend.CpuSparseMLABackend"
        return super().get_attn_backend_cls(selected_backend, attn_selector_config, *args, **kwargs)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Let stock settle the configuration, except for what it forces on dense MLA for its own kernels.

        Raises `Unsupported` for what the sparse backend cannot serve.
        """
        kept = Kept.of(vllm_config)
        super().check_and_update_config(vllm_config)
        if kept is not None:
            kept.restore(vllm_config)
        model = vllm_config.model_config
        if model is not None and model.use_mla:
            without_compiled_rotary(vllm_config)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None:
        """Leave the block size as `check_and_update_config` settled it; vLLM 0.33 would choose 128 here."""
        if not is_served(vllm_config.model_config):
            super().update_block_size_for_backend(vllm_config)

    @classmethod
    def device_id_to_physical_device_id(cls, device_id: int) -> Any:
        """The memory node of the worker with this number among those of all data-parallel ranks.

        Workers share nodes where there are fewer, except if vLLM is to bind each to the cores of its own. Stock gives
        the second rank of a machine with one node another one; vLLM 0.33 looks for it and does not start.
        """
        nodes = get_visible_memory_node()
        if not nodes or os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto":
            return super().device_id_to_physical_device_id(device_id)
        return nodes[device_id % len(nodes)]

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """vLLM's hook in every worker, before the model is built."""
        _install()
        super().register_triton_kernel_overrides()


@cache
def _install() -> None:
    from vllm_cpu_dsa import invariance
    from vllm_cpu_dsa.indexer_backend import CpuSparseAttnIndexer, SparseAttnIndexer
    from vllm_cpu_dsa.patches import REGISTER

    invariance.install()
    report = REGISTER.apply()
    SparseAttnIndexer.register_oot(CpuSparseAttnIndexer, name=SparseAttnIndexer.__name__)
    _log.info("sparse MLA and the DSA indexer run in plain torch; %s", report)
