"""What the CPU platform decides for dense MLA and its kernels, undone for the sparse attention, which has neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_cpu_dsa.guards import BLOCK_SIZE, check, is_served

__all__ = ["ROTARY_OFF", "Kept", "without_compiled_rotary"]

ROTARY_OFF = "-rotary_embedding"
"""vLLM's compiled CPU rotary op misreads the 3-D tensors that MLA passes it; off, its torch version runs."""


@dataclass(frozen=True)
class Kept:
    """A configuration's values as they were before the platform has settled it."""

    block_size: int
    prefix_caching: bool
    chunked_prefill: bool
    batched_tokens: int

    @classmethod
    def of(cls, vllm_config: Any) -> Kept | None:
        """Those to keep; None for a model that has no sparse attention here."""
        if not is_served(vllm_config.model_config):
            return None
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        return cls(
            cache.block_size if cache.user_specified_block_size else BLOCK_SIZE,
            cache.enable_prefix_caching,
            scheduler.enable_chunked_prefill,
            scheduler.max_num_batched_tokens,
        )

    def restore(self, vllm_config: Any) -> None:
        """Put them back; raises `Unsupported` for what the sparse attention cannot serve."""
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        cache.block_size, cache.enable_prefix_caching = self.block_size, self.prefix_caching
        scheduler.enable_chunked_prefill = self.chunked_prefill
        scheduler.max_num_batched_tokens = self.batched_tokens
        check(vllm_config)


def without_compiled_rotary(vllm_config: Any) -> None:
    """Let the rotary embedding run in torch."""
    ops = vllm_config.compilation_config.custom_ops
    if ROTARY_OFF not in ops:
        ops.append(ROTARY_OFF)
