"""How many caches of each kind a model's configuration asks for, so that a block without one of them is noticed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_tier.errors import KeyRefused

__all__ = ["LayerCounts", "is_indexer", "is_prediction"]

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class LayerCounts:
    """mla, indexer: caches, those of prediction layers included. mtp: prediction layers that are served."""

    mla: int
    indexer: int
    mtp: int

    @classmethod
    def of(cls, config: Mapping[str, Any], mtp: int) -> LayerCounts:
        """From the text model's config.json; raises `KeyRefused` for a model without MLA.

        vLLM's rule for indexers (models/deepseek_v32/attention.py): a layer uses the choice of one before it if
        ``index_topk_pattern`` has an S for it; without a pattern, if max(layer - index_skip_topk_offset + 1, 0) is no
        multiple of ``index_topk_freq``. A prediction layer always has its own.
        """
        if config.get("kv_lora_rank") is None:
            raise KeyRefused(
                f"model_type={config.get('model_type')!r} without kv_lora_rank",
                "it has no MLA, and what caches it must have is not known",
                "models with MLA, such as GLM-5.3",
                "Serve it without this tier",
            )
        layers = int(config["num_hidden_layers"])
        if config.get("index_topk") is None:
            return cls(layers + mtp, 0, mtp)
        pattern = config.get("index_topk_pattern")
        every, offset = int(config.get("index_topk_freq") or 1), int(config.get("index_skip_topk_offset", 2))
        own = [
            pattern[layer] != "S" if pattern is not None else max(layer - offset + 1, 0) % every == 0
            for layer in range(layers)
        ]
        return cls(layers + mtp, sum(own) + mtp, mtp)


def is_indexer(name: str) -> bool:
    """Whether a cache of this name in vLLM belongs to an indexer."""
    return ".indexer." in name


def is_prediction(name: str, hidden_layers: int) -> bool:
    """Whether a cache of this name belongs to a prediction layer: they are numbered after the hidden layers."""
    match = _LAYER.search(name)
    if match is None:
        raise KeyRefused(f"cache {name!r}", "its name has no layer number", "names such as model.layers.0.x", "Report")
    return int(match[1]) >= hidden_layers
