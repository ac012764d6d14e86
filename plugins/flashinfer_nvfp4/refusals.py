"""What the vLLM backend cannot serve from these rows, by name: facts of a deployment in, a sentence or None out.

Standard library only. vLLM puts the sentence into its list of why no backend fits, and on compute capability 10.x
then asks FLASHMLA_SPARSE, which reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashinfer_nvfp4.rowformat import LATENT, ROPE

__all__ = ["Deployment", "refusal"]


@dataclass(frozen=True)
class Deployment:
    """latent, rope: ``kv_lora_rank`` and ``qk_rope_head_dim``. topk: ``index_topk``, None for a model without an
    indexer. dtype: of the model, without its package. skipped: ``kv_cache_dtype_skip_layers``."""

    latent: int
    rope: int
    topk: int | None
    dtype: str = "bfloat16"
    sinks: bool = False
    hisparse: bool = False
    skipped: tuple[str, ...] = ()
    prefill_parallel: int = 1

    @classmethod
    def of(cls, config: Any, dtype: Any, sinks: bool) -> Deployment:
        """That of a vLLM configuration with a model, by the dtype that its attention was asked for."""
        text = config.model_config.hf_text_config
        return cls(
            latent=getattr(text, "kv_lora_rank", 0) or 0,
            rope=getattr(text, "qk_rope_head_dim", 0) or 0,
            topk=getattr(text, "index_topk", None),
            dtype=str(dtype).removeprefix("torch."),
            sinks=sinks,
            hisparse=config.attention_config.hisparse_config is not None,
            skipped=tuple(config.cache_config.kv_cache_dtype_skip_layers or ()),
            prefill_parallel=config.parallel_config.prefill_context_parallel_size,
        )


def refusal(deployment: Deployment) -> str | None:
    """Why the rows cannot be served so: the value seen, why, what is allowed, and what to change."""
    return next((sentence.format(d=deployment) for holds, sentence in _REFUSED if holds(deployment)), None)


_OTHER = "serve it with another --kv-cache-dtype"
_REFUSED: tuple[tuple[Callable[[Deployment], bool], str], ...] = (
    (
        lambda d: d.rope == 0,
        f"qk_rope_head_dim=0 with kv_lora_rank={{d.latent}}: a row has {ROPE} RoPE elements, and this model (such as "
        f"GLM-5.3-Flash) has none and another row; allowed: {ROPE} beside a latent of {LATENT}; {_OTHER}",
    ),
    (
        lambda d: (d.latent, d.rope) != (LATENT, ROPE),
        f"kv_lora_rank={{d.latent}} with qk_rope_head_dim={{d.rope}}: a row holds {LATENT} latent and {ROPE} RoPE "
        f"elements; allowed: {LATENT} and {ROPE}; {_OTHER}",
    ),
    (
        lambda d: d.topk is None,
        f"no index_topk: the rows are read by sparse MLA alone, and this model has no indexer; allowed: models with "
        f"one; {_OTHER}",
    ),
    (
        lambda d: d.dtype != "bfloat16",
        "dtype={d.dtype}: the kernels take bfloat16 or e4m3 queries; allowed: bfloat16; pass --dtype bfloat16",
    ),
    (
        lambda d: d.sinks,
        f"attention sinks: no kernel for these rows adds them; allowed: models without; {_OTHER}",
    ),
    (
        lambda d: d.hisparse,
        "hisparse_config is set: HiSparse moves rows of the model's head size and gathers them as fp8_ds_mla, and "
        "these are neither; allowed: no HiSparse; remove it or serve with --kv-cache-dtype fp8_ds_mla",
    ),
    (
        lambda d: bool(d.skipped),
        "kv_cache_dtype_skip_layers={d.skipped}: layers that share an index result would count rows of two sizes; "
        "allowed: one cache dtype in all layers; remove the setting",
    ),
    (
        lambda d: d.prefill_parallel > 1,
        "prefill_context_parallel_size={d.prefill_parallel}: not one of this backend's paths was tested with it; "
        "allowed: 1; use decode context parallelism or tensor parallelism",
    ),
)
