"""One deployment's fields of a namespace, for tests to change."""

from __future__ import annotations

from typing import Any

NAMESPACE = "mt1-" + "0123456789abcdef" * 2


def fields(**changed: Any) -> dict[str, Any]:
    """The fields of a small model with an indexer in one of two layers, and a prediction layer."""
    caches = [
        {"name": "model.layers.0.attn", "kind": "mla", "mtp": False, "nbytes": 36_864, "offset": 0},
        {"name": "model.layers.0.indexer", "kind": "indexer", "mtp": False, "nbytes": 8_448, "offset": 36_864},
        {"name": "model.layers.1.attn", "kind": "mla", "mtp": False, "nbytes": 36_864, "offset": 45_312},
        {"name": "model.layers.2.attn", "kind": "mla", "mtp": True, "nbytes": 36_864, "offset": 82_176},
    ]
    return {
        "model": "zai-org/GLM-5.3",
        "revision": "0a1b2c3d",
        "weights": "sha256-77aa",
        "adapter": "",
        "cache_dtype": "fp8",
        "codec": "",
        "layout": "BLHNC",
        "caches": caches,
        "mla_layers": 3,
        "indexer_layers": 1,
        "mtp_layers": 1,
        "block_size": 64,
        "chunk_blocks": 1,
        "tp_size": 1,
        "pp_size": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "hash_algorithm": "sha256",
        "hash_seed": "vllm-none-hash",
        "checksum": "xxh3",
    } | changed
