"""Which KV caches a sparse MLA model has, read from the content of its config.json."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DTYPES", "Caches", "PlanError"]

#: Cache dtype -> bytes of one value, where a row is the latent and the rotary key.
_VALUE_BYTES = {"float32": 4, "bf16": 2, "fp8": 1}
#: Cache dtype -> bytes of one packed row: latent, rotary key and scales of DeepSeek's 512 + 64 values.
_PACKED_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_PACKED_DIMS = (512, 64)
DTYPES = (*_VALUE_BYTES, *_PACKED_BYTES)

#: An index key is stored in 8-bit values with one 4-byte scale for this many of them.
_VALUES_PER_SCALE = 128
_SCALE_BYTES = 4

#: Far above any model, and low enough to be planned at once.
_MOST_LAYERS = 10_000
_MOST = 1 << 20


class PlanError(ValueError):
    """A plan that cannot be made: the text names the value, why, what is allowed and what to do."""


@dataclass(frozen=True)
class Caches:
    """The caches of one model: every layer has an MLA cache, some have an indexer cache beside it.

    mla, indexers: number of caches, multi-token-prediction layers included. mtp: how many layers those are.
    latent, rotary, index_key: values that one token stores in an MLA cache, and in an indexer cache.
    """

    mla: int
    indexers: int
    mtp: int
    latent: int
    rotary: int
    index_key: int

    @classmethod
    def of(cls, config: Mapping[str, Any], mtp: int | None = None) -> Caches:
        """The caches of the model with this config.json, as vLLM's DeepSeek-V3.2 model classes make them.

        The ``text_config`` of a multimodal model is read where the top level has no ``kv_lora_rank``.
        mtp: multi-token-prediction layers that are served; None takes all that the model has.
        Raises `PlanError` for a model without MLA or sparse attention, and for missing or contradicting fields.
        """
        model = config.get("model_type", "without a model_type")
        nested = config.get("text_config")
        if config.get("kv_lora_rank") is None and isinstance(nested, Mapping):
            config = nested
        for field, what in (("kv_lora_rank", "MLA"), ("index_topk", "sparse attention")):
            if config.get(field) is None:
                raise PlanError(
                    f"{field} is missing, so this model ({model}) has no {what}, and only caches of sparse MLA "
                    "are planned. Allowed are models such as GLM-5.3 and DeepSeek-V3.2: give the config.json of one."
                )
        _count(config, "index_topk")
        layers = _count(config, "num_hidden_layers", most=_MOST_LAYERS)
        predicting, mtp = _prediction_layers(config, mtp)
        own = _runs_indexer(config, layers, predicting)
        index_key = _count(config, "index_head_dim")
        if index_key % _VALUES_PER_SCALE:
            raise PlanError(
                f"index_head_dim={index_key}: vLLM stores an index key with one scale for each {_VALUES_PER_SCALE} "
                f"values and none for fewer. It must be a multiple of {_VALUES_PER_SCALE}: correct the config.json."
            )
        # A prediction layer always has an indexer of its own: the schedule is for the hidden layers.
        return cls(
            mla=layers + mtp,
            indexers=sum(own) + mtp,
            mtp=mtp,
            latent=_count(config, "kv_lora_rank"),
            rotary=_count(config, "qk_rope_head_dim"),
            index_key=index_key,
        )

    @property
    def count(self) -> int:
        """All caches; each has one page in every block."""
        return self.mla + self.indexers

    @property
    def index_row_bytes(self) -> int:
        """Bytes of one token in an indexer cache."""
        return self.index_key + self.index_key // _VALUES_PER_SCALE * _SCALE_BYTES

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Cache dtypes that there are for rows of these values."""
        return DTYPES if (self.latent, self.rotary) == _PACKED_DIMS else tuple(_VALUE_BYTES)

    def row_bytes(self, dtype: str) -> int:
        """Bytes of one token in an MLA cache of this dtype; raises `PlanError` for one that cannot be."""
        if dtype in _VALUE_BYTES:
            return (self.latent + self.rotary) * _VALUE_BYTES[dtype]
        if dtype not in _PACKED_BYTES:
            raise PlanError(f"dtype={dtype!r} is not known; allowed are {', '.join(DTYPES)}. Choose one of them.")
        if dtype not in self.dtypes:
            raise PlanError(
                f"dtype={dtype!r} packs rows of {_PACKED_DIMS[0]} latent and {_PACKED_DIMS[1]} rotary values, but "
                f"this model has kv_lora_rank={self.latent} and qk_rope_head_dim={self.rotary}. "
                f"Choose one of {', '.join(self.dtypes)}."
            )
        return _PACKED_BYTES[dtype]

    def pages(self, dtype: str, block_size: int) -> dict[str, int]:
        """Bytes of one page by cache; a page holds `block_size` tokens of one cache."""
        mla, indexer = (row * block_size for row in (self.row_bytes(dtype), self.index_row_bytes))
        return {f"mla.{i}": mla for i in range(self.mla)} | {f"indexer.{i}": indexer for i in range(self.indexers)}


def _prediction_layers(config: Mapping[str, Any], mtp: int | None) -> tuple[int, int]:
    """Multi-token-prediction layers of the model, and those of them that are served."""
    field = "num_nextn_predict_layers"
    silent = config.get(field) is None
    if silent and mtp is not None:
        has, most, why = mtp, _MOST_LAYERS, f"no model has more than {_MOST_LAYERS:,}"
    else:
        instead = ", or say --mtp N (0 for none)" if silent else ""
        has = most = _count(config, field, least=0, most=_MOST_LAYERS, instead=instead)
        why = f"the model has {field}={has}"
    served = has if mtp is None else mtp
    if not 0 <= served <= most:
        raise PlanError(
            f"mtp={reprlib.repr(mtp)}: it counts the prediction layers that are served, and {why}. Give 0 to {most:,}; "
            "a draft of more tokens runs the same layers again."
        )
    return has, served


def _runs_indexer(config: Mapping[str, Any], layers: int, predicting: int) -> list[bool]:
    """For each hidden layer whether it runs an indexer of its own, or shares the choice of one before it.

    vLLM's rule (models/deepseek_v32/attention.py): a layer shares if ``index_topk_pattern`` has an S for it;
    without a pattern, if max(layer - index_skip_topk_offset + 1, 0) is no multiple of ``index_topk_freq``.
    """
    pattern = config.get("index_topk_pattern")
    if pattern is None:
        every = _count(config, "index_topk_freq") if "index_topk_freq" in config else 1
        offset = _count(config, "index_skip_topk_offset", least=0) if "index_skip_topk_offset" in config else 2
        own = [max(layer - offset + 1, 0) % every == 0 for layer in range(layers)]
        rule = f"index_topk_freq={every}"
    else:
        if not isinstance(pattern, str | list) or any(kind not in ("F", "S") for kind in pattern):
            raise PlanError(
                f"index_topk_pattern={reprlib.repr(pattern)} cannot be read; it has an F for a layer with an indexer "
                "of its own and an S for one that shares. Correct the config.json."
            )
        if len(pattern) > layers + predicting:
            raise PlanError(
                f"index_topk_pattern has {len(pattern)} letters, but there are {layers} hidden and {predicting} "
                "prediction layers, and vLLM would pass over the others without a word. Allowed is one letter for each "
                "layer: correct the config.json."
            )
        own = [layer >= len(pattern) or pattern[layer] == "F" for layer in range(layers)]
        rule = "index_topk_pattern"
    types = config.get("indexer_types")
    if types is None:
        return own
    if not isinstance(types, list) or any(kind not in ("full", "shared") for kind in types):
        raise PlanError(
            f"indexer_types={reprlib.repr(types)} cannot be read; it is a list with full or shared for each hidden "
            "layer. Correct the config.json."
        )
    if [kind == "full" for kind in types] != own:
        raise PlanError(
            f"indexer_types has {sum(kind == 'full' for kind in types)} full of {len(types)} layers, but {rule} gives "
            f"{sum(own)} of {layers}, and vLLM goes by {rule} alone. Both must say the same: correct the config.json."
        )
    return own


def _count(config: Mapping[str, Any], field: str, least: int = 1, most: int = _MOST, instead: str = "") -> int:
    value = config.get(field)
    if type(value) is not int or not least <= value <= most:
        seen = f"{field}={reprlib.repr(value)}" if field in config else f"{field} is missing"
        raise PlanError(
            f"{seen}: the caches follow from it. It must be a whole number from {least} to {most:,}: correct the "
            f"config.json{instead}."
        )
    return value
