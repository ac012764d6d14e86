"""The KV cache: row formats, who can read them, and what belongs to which."""

from __future__ import annotations

from collections.abc import Iterator

from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment
from glm53.deployment.parts import CPU_CACHE_DTYPES

__all__ = ["findings"]

#: Attention backend -> cache dtypes that it reads on GPUs (`supported_kv_cache_dtypes` of vLLM 0.31 to 0.33), and the
#: compute capabilities it runs on.
_BACKENDS = {
    "FLASHMLA_SPARSE": (("fp8", "fp8_ds_mla"), (9, 10)),
    "FLASHINFER_MLA_SPARSE": (("fp8",), (10,)),
}
_NVFP4 = "nvfp4_ds_mla"


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with `engine` and `kv_transfer`."""
    engine, transfer = deployment.engine, deployment.kv_transfer
    if engine.block_size % 64:
        yield Finding(
            "block-size",
            "engine.block_size",
            f"{engine.block_size} tokens do not fit the sparse indexer's cache, whose pages hold 64.",
            "Use 64 or a multiple of it.",
        )
    elif deployment.machine.gpus and engine.block_size != 64 and transfer.layout == "BLHNC":
        yield Finding(
            "block-size",
            "engine.block_size",
            f"{engine.block_size} tokens: GPU kernels of the sparse indexer split blocks into pages of 64, and block "
            "rows cannot be split.",
            "Use 64.",
        )
    yield from _dtype(deployment)
    for key in ("nvfp4_policy", "nvfp4_kernel", "nvfp4_fold"):
        value = getattr(engine, key)
        if value is not None and engine.kv_cache_dtype != _NVFP4:
            yield Finding(
                "policy-without-nvfp4",
                f"engine.{key}",
                f"{value} is about NVFP4 rows, but kv_cache_dtype={engine.kv_cache_dtype} has none.",
                f"Set kv_cache_dtype to nvfp4_ds_mla, or leave {key} out.",
            )
    if transfer.eviction_window and transfer.block_allocation != "runs":
        yield Finding(
            "window-without-runs",
            "kv_transfer.eviction_window",
            f"{transfer.eviction_window} blocks, but block_allocation={transfer.block_allocation} takes none.",
            "Set block_allocation to runs, or eviction_window to 0.",
        )
    if transfer.on_failure != "fail" and deployment.disaggregated:
        yield Finding(
            "failure-policy",
            "kv_transfer.on_failure",
            f"{transfer.on_failure}: decode groups would compute whole prompts, for which they have no room and whose "
            "cost nobody sees.",
            "Use fail; the frontend retries what has not been streamed.",
        )


def _dtype(deployment: Deployment) -> Iterator[Finding]:
    engine, machine = deployment.engine, deployment.machine
    dtype, backend = engine.kv_cache_dtype, engine.attention_backend
    if not machine.gpus:
        if dtype not in CPU_CACHE_DTYPES:
            yield Finding(
                "cache-dtype",
                "engine.kv_cache_dtype",
                f"no row format for {dtype} exists on the CPU.",
                f"Use {', '.join(CPU_CACHE_DTYPES[:-1])} or {CPU_CACHE_DTYPES[-1]}.",
            )
        if backend:
            yield Finding(
                "backend-on-cpu",
                "engine.attention_backend",
                f"{backend} is a GPU's, and hardware=cpu has its own.",
                "Leave attention_backend out.",
            )
        if engine.mtp_depth:
            yield Finding(
                "mtp-on-cpu",
                "engine.mtp_depth",
                f"{engine.mtp_depth}: the small model of the CPU stack has no prediction layer.",
                "Use 0.",
            )
        return
    if dtype == "auto":
        yield Finding(
            "cache-dtype",
            "engine.kv_cache_dtype",
            "auto is settled by each worker from model and GPU, so that two could settle differently.",
            "Name the dtype: fp8, fp8_ds_mla or nvfp4_ds_mla.",
        )
    if backend is None:
        yield Finding(
            "no-backend",
            "engine.attention_backend",
            "vLLM chooses a backend by the heads of each rank, so that prefill and decode could choose differently.",
            f"Name one: {' or '.join(_BACKENDS)}.",
        )
        return
    dtypes, capabilities = _BACKENDS[backend]
    if machine.capability[0] not in capabilities:
        yield Finding(
            "backend-hardware",
            "engine.attention_backend",
            f"{backend} does not run on {deployment.hardware}.",
            "Use FLASHMLA_SPARSE.",
        )
    elif dtype == _NVFP4:
        yield from _nvfp4(deployment, stock=(backend, machine.capability[0]) == ("FLASHMLA_SPARSE", 10))
    elif dtype not in (*dtypes, "auto"):
        yield Finding(
            "backend-dtype",
            "engine.attention_backend",
            f"{backend} does not read {dtype} rows.",
            "Use FLASHMLA_SPARSE, or a dtype of " + ", ".join(dtypes) + ".",
        )


def _nvfp4(deployment: Deployment, *, stock: bool) -> Iterator[Finding]:
    """NVFP4 rows on a GPU. stock: vLLM's own backend reads and writes them; elsewhere the plugin does."""
    engine = deployment.engine
    if stock and (engine.nvfp4_policy not in (None, "rtn") or engine.nvfp4_fold):
        yield Finding(
            "policy-of-stock",
            "engine.nvfp4_policy" if engine.nvfp4_policy not in (None, "rtn") else "engine.nvfp4_fold",
            f"with {engine.attention_backend} on {deployment.hardware} vLLM's own writer makes the rows, always by rtn "
            "and without a fold.",
            "Use rtn and no fold, or attention_backend: FLASHINFER_MLA_SPARSE, which the plugin takes over.",
        )
    if engine.nvfp4_kernel == "off":
        yield Finding(
            "no-nvfp4-reader",
            "engine.nvfp4_kernel",
            f"without the plugin vLLM ends at the first short prompt of which a part is cached: its {_NVFP4} rows are "
            "not read for dense prefill."
            if stock
            else f"{engine.attention_backend} on {deployment.hardware} reads NVFP4 rows by the plugin only, and it is "
            "off.",
            "Use auto, or leave nvfp4_kernel out.",
        )
