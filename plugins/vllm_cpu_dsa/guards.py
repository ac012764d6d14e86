"""Configurations that the CPU's sparse attention cannot serve rightly, refused before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from vllm_cpu_dsa.errors import Unsupported
from vllm_cpu_dsa.rows import LATENT, ROPE, row_format

__all__ = ["BLOCK_SIZE", "check", "is_served"]

BLOCK_SIZE = 64
"""Tokens of a kernel block; the indexer's page format is defined for this size."""

INDEX_HEAD_DIM = 128

ALL2ALL = "allgather_reducescatter"
"""How tokens meet experts of other ranks: vLLM's default, and the only way that does without a GPU's kernels."""

ARCHITECTURES = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM")
DRAFTS = ("DeepseekV32MTPModel", "DeepSeekMTPModel")


def is_served(model_config: Any) -> bool:
    """Whether the model, or the draft model, is one whose sparse attention this plugin computes.

    Other models with an indexer (another selection rule, other caches) stay with stock, which refuses them.
    """
    if model_config is None:
        return False
    architectures = set(model_config.architectures)
    if architectures.intersection(ARCHITECTURES):
        return True
    return bool(architectures.intersection(DRAFTS)) and hasattr(model_config.hf_text_config, "index_topk")


def check(vllm_config: Any) -> None:
    """Raise `Unsupported` for the first setting of ``vllm_config`` that cannot work."""
    for finding in _findings(vllm_config):
        raise finding


def _findings(vllm_config: Any) -> Iterator[Unsupported]:
    yield from _model(vllm_config.model_config.hf_text_config)
    yield from _cache(vllm_config.cache_config)
    yield from _parallel(vllm_config.parallel_config)
    yield from _experts(vllm_config)
    yield from _engine(vllm_config)


def _model(config: Any) -> Iterator[Unsupported]:
    topk = getattr(config, "index_topk", None)
    if not isinstance(topk, int) or topk < 1:
        yield Unsupported(
            f"index_topk={topk!r}",
            "the indexer must know how many tokens a query attends to",
            "a positive integer (GLM-5.3 has 2048)",
            "Correct index_topk in the model's config.json",
        )
    for name, only in (
        ("kv_lora_rank", LATENT),
        ("qk_rope_head_dim", ROPE),
        ("index_head_dim", INDEX_HEAD_DIM),
    ):
        if (value := getattr(config, name, None)) != only:
            yield Unsupported(
                f"{name}={value!r}",
                "the cache formats are defined for the sizes of GLM-5 and DeepSeek-V3.2",
                f"{name}={only}",
                "Use a model with these sizes; other sizes of the model are free",
            )
    declared, derived = getattr(config, "indexer_types", None), _indexer_types(config)
    if declared is not None and list(declared) != derived:
        yield Unsupported(
            f"indexer_types={list(declared)}",
            f"vLLM ignores this key and would share indices as {derived}, from index_topk_pattern or else "
            "index_topk_freq and index_skip_topk_offset",
            "keys that agree",
            "Set index_topk_pattern (F for full, S for shared, one letter a layer) in config.json",
        )

    if derived[0] == "shared":
        yield Unsupported(
            "a first layer without an indexer",
            "there is no earlier selection that it could share",
            "a pattern that begins with a full layer",
            "Correct index_topk_pattern in the model's config.json",
        )


def _indexer_types(config: Any) -> list[str]:
    """Which layers own an indexer, as vLLM's model code reads the config."""
    pattern = getattr(config, "index_topk_pattern", None)
    freq = getattr(config, "index_topk_freq", 1)
    offset = getattr(config, "index_skip_topk_offset", 2)
    types = []
    for layer in range(config.num_hidden_layers):
        if pattern is None:
            shared = max(layer - offset + 1, 0) % freq != 0
        else:
            shared = layer < len(pattern) and pattern[layer] == "S"
        types.append("shared" if shared else "full")
    return types


def _cache(cache_config: Any) -> Iterator[Unsupported]:
    row_format(cache_config.cache_dtype)
    if skipped := cache_config.kv_cache_dtype_skip_layers:
        yield Unsupported(
            f"--kv-cache-dtype-skip-layers {' '.join(map(str, skipped))}",
            "layers would share blocks with rows of two formats, whose pages have no common stride",
            "no layer skipped",
            "Drop --kv-cache-dtype-skip-layers",
        )
    size = cache_config.block_size
    if size % BLOCK_SIZE:
        yield Unsupported(
            f"--block-size {size}",
            f"an indexer page holds {BLOCK_SIZE} keys, then their scales, and cannot be split further",
            f"multiples of {BLOCK_SIZE}",
            f"Drop --block-size (the default is {BLOCK_SIZE})",
        )
    layout = os.environ.get("VLLM_KV_CACHE_LAYOUT", "")
    if size != BLOCK_SIZE and layout.startswith("BL"):
        yield Unsupported(
            f"--block-size {size} with VLLM_KV_CACHE_LAYOUT={layout}",
            "block-outermost rows hold one page of each layer, which cannot be split into indexer pages",
            f"--block-size {BLOCK_SIZE}, or a layer-outermost layout",
            "Drop --block-size",
        )


def _parallel(parallel_config: Any) -> Iterator[Unsupported]:
    for name, flag, why in (
        (
            "pipeline_parallel_size",
            "--pipeline-parallel-size",
            "vLLM does not pass the selected indices on to the next stage, where layers may share them",
        ),
        (
            "decode_context_parallel_size",
            "--decode-context-parallel-size",
            "the CPU indexer selects from a whole context, not from one rank's part of it",
        ),
        (
            "prefill_context_parallel_size",
            "--prefill-context-parallel-size",
            "the CPU indexer selects from a whole context, not from one rank's part of it",
        ),
    ):
        if (value := getattr(parallel_config, name)) > 1:
            yield Unsupported(f"{flag} {value}", why, f"{flag} 1", "Use --tensor-parallel-size, or start more workers")


def _experts(vllm_config: Any) -> Iterator[Unsupported]:
    parallel, quantization = vllm_config.parallel_config, vllm_config.model_config.quantization
    if parallel.enable_expert_parallel and quantization is not None:
        yield Unsupported(
            f"--enable-expert-parallel with quantization {quantization}",
            "vLLM's quantized CPU experts take the numbers of other ranks' experts for their own",
            "--enable-expert-parallel with unquantized experts",
            "Drop --enable-expert-parallel, or serve the model unquantized",
        )
    apart = parallel.enable_expert_parallel or parallel.data_parallel_size > 1
    if apart and parallel.all2all_backend != ALL2ALL:
        yield Unsupported(
            f"--all2all-backend {parallel.all2all_backend}",
            "its kernels need GPUs",
            f"--all2all-backend {ALL2ALL}",
            "Drop --all2all-backend",
        )


def _engine(vllm_config: Any) -> Iterator[Unsupported]:
    if vllm_config.use_v2_model_runner:
        yield Unsupported(
            "VLLM_USE_V2_MODEL_RUNNER=1",
            "the CPU worker's second model runner needs Triton kernels for its batch metadata",
            "the first model runner",
            "Set VLLM_USE_V2_MODEL_RUNNER=0",
        )
    mode = vllm_config.compilation_config.mode
    if mode:
        yield Unsupported(
            f"compilation mode {getattr(mode, 'name', mode)}",
            "the traced indexer repeats what it did in vLLM's first pass, which has no batch, and selects nothing",
            "mode NONE",
            "Pass --enforce-eager",
        )
    if "+rotary_embedding" in vllm_config.compilation_config.custom_ops:
        yield Unsupported(
            'custom_ops=["+rotary_embedding"]',
            "vLLM's compiled CPU rotary op takes each head of the tensors that MLA passes it for a token",
            "its torch version, which this platform selects",
            "Remove +rotary_embedding",
        )
    attention = vllm_config.attention_config
    if attention.backend is not None:
        yield Unsupported(
            f"--attention-backend {getattr(attention.backend, 'name', attention.backend)}",
            "it has no sparse attention on the CPU",
            "no choice, because the platform has one backend for these models",
            "Drop --attention-backend",
        )
    if attention.indexer_kv_dtype not in ("auto", "fp8"):
        yield Unsupported(
            f"indexer_kv_dtype={attention.indexer_kv_dtype}",
            "the CPU indexer stores its keys as FP8",
            "auto, fp8",
            "Drop indexer_kv_dtype from --attention-config",
        )
    draft, cache_dtype = vllm_config.speculative_config, vllm_config.cache_config.cache_dtype
    if draft is not None and draft.kv_cache_dtype not in (None, cache_dtype):
        yield Unsupported(
            f"kv_cache_dtype={draft.kv_cache_dtype} of the draft beside --kv-cache-dtype {cache_dtype}",
            "the MTP layer shares its blocks with the model's layers, and so their row format",
            "the same for both",
            "Leave kv_cache_dtype out of --speculative-config",
        )
    if draft is not None and draft.method != "mtp":
        yield Unsupported(
            f"speculative method {draft.method}",
            "only the model's own MTP layer has been tested with the CPU's sparse attention",
            "mtp",
            'Pass --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\' or none',
        )
