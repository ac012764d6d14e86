"""What the store connector refuses before a request is served."""

from __future__ import annotations

from typing import Any

from mooncake_tier.errors import SettingRefused

__all__ = ["refuse_what_cannot_work"]


def refuse_what_cannot_work(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raise `SettingRefused` for a configuration in which blocks could be lost, mixed up, or end a request.

    vllm_config: the connector's, in MultiConnector a copy with the child's ``kv_transfer_config``.
    """
    from vllm.config import get_current_vllm_config_or_none
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    whole = get_current_vllm_config_or_none()  # a worker's; has MultiConnector's own entry
    entries = [vllm_config.kv_transfer_config, whole.kv_transfer_config if whole is not None else None]
    for entry in entries:
        if entry is not None and entry.kv_load_failure_policy != "recompute":
            raise SettingRefused(
                f"{entry.kv_connector}: kv_load_failure_policy={entry.kv_load_failure_policy!r}",
                "a block that left the store between lookup and load would end its request with an error",
                "recompute, in MultiConnector's entry and in this connector's",
                'Set "kv_load_failure_policy": "recompute"',
            )
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    if not cache.enable_prefix_caching:
        raise SettingRefused(
            "enable_prefix_caching=False", "blocks have no hashes then", "True", "Drop --no-enable-prefix-caching"
        )
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) != 1:
            raise SettingRefused(
                f"{name}={getattr(parallel, name)}",
                "a block is then spread over ranks, which is not tested",
                "1, with tensor, data and expert parallelism",
                "Serve it without this connector",
            )
    if kv_cache_config.kv_tp_replicas != parallel.tensor_parallel_size:
        raise SettingRefused(
            f"kv_tp_replicas={kv_cache_config.kv_tp_replicas} with "
            f"tensor_parallel_size={parallel.tensor_parallel_size}",
            "ranks hold different bytes of a block, and an object would have those of one",
            "caches that are the same on every rank, as those of MLA",
            "Serve it without this connector",
        )
    groups = kv_cache_config.kv_cache_groups
    sizes = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    if len(groups) != 1 or sizes != (cache.block_size, cache.block_size):
        raise SettingRefused(
            f"{len(groups)} groups of caches, (scheduler, hash) block sizes {sizes}, block_size={cache.block_size}",
            "a block's hash must name one block of all caches",
            "one group with one block size, as sparse MLA models have",
            "Serve it without this connector",
        )
