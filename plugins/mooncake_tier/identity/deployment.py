"""The namespace of a vLLM deployment: what a worker's configuration, its caches and its loaded model say of its blocks.

Ask in a worker, once its model is loaded: the scheduler's process neither has the model nor the caches of one layer.
Whoever needs the namespace elsewhere carries the fields there. Importing this loads no vLLM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mooncake_tier.errors import KeyRefused
from mooncake_tier.identity.model_layers import LayerCounts, is_indexer, is_prediction
from mooncake_tier.identity.row_facts import row_facts
from mooncake_tier.identity.weights import fingerprint
from mooncake_tier.vllm_stock import hash_seed, series

__all__ = ["WAYS", "Identity", "namespace_fields"]

WAYS = ("offload", "store")
"""How the pieces of an object follow each other: cache after cache of a chunk in host memory (`mooncake_tier.tier`), or
as the pages lie in the GPU's block (the store connector). The two do not read each other's objects."""

_BLOCK_OUTERMOST = ("BLHNC", "BLNHC", "BHLNC")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What vLLM's configuration may not tell; empty is taken from there.

    model: the model's id with its owner. revision: the checkpoint's commit. weights: text that changes with the
    weights, instead of their fingerprint. adapter: all LoRA adapters that may be asked for, with their revisions.
    """

    model: str = ""
    revision: str = ""
    weights: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(getattr(self, field.name), str):
                raise KeyRefused(
                    f"{field.name}={getattr(self, field.name)!r}", "it tells deployments apart", "text", "Correct it"
                )


def namespace_fields(
    vllm_config: Any, kv_cache_config: Any, *, way: str, chunk_blocks: int = 1, identity: Identity | None = None
) -> dict[str, Any]:
    """The fields for `mooncake_tier.keys.namespace`, plain data that travels as JSON.

    vllm_config, kv_cache_config: a worker's, as its connector gets them. way: one of `WAYS`. chunk_blocks: blocks in
    one object. Reads some pieces of every weight file. Raises `KeyRefused` where blocks could not be told apart:
    weights that are not on this machine and have no name, unnamed LoRA adapters, a model without MLA, pipeline
    parallelism, caches in host memory.
    """
    named = identity or Identity()
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    _refuse_what_has_no_key(vllm_config, kv_cache_config, named)
    config = model.hf_text_config.to_dict()
    counts = LayerCounts.of(config, _prediction_layers(vllm_config))
    folder = _folder(model, vllm_config.load_config)
    weights = named.weights or _fingerprints(vllm_config, folder)
    return {
        "model": named.model or str(model.model),
        "revision": named.revision or str(model.revision or "") or _commit(folder) or weights,
        "weights": f"{weights}/{_computed(vllm_config, config)}",
        "adapter": named.adapter,
        "cache_dtype": "+".join(dict.fromkeys(_dtypes(vllm_config))),
        "codec": "/".join(
            [
                vllm_config.device_config.device_type,
                f"vllm-{series()}",
                *(f"{name}={value}" for name, value in sorted(row_facts(vllm_config).items())),
            ]
        ),
        "layout": f"{kv_cache_config.kv_cache_layout}/{way}",
        "caches": _caches(kv_cache_config, int(config["num_hidden_layers"])),
        "mla_layers": counts.mla,
        "indexer_layers": counts.indexer,
        "mtp_layers": counts.mtp,
        "block_size": int(cache.block_size),
        "chunk_blocks": chunk_blocks,
        "tp_size": parallel.tensor_parallel_size,
        "pp_size": parallel.pipeline_parallel_size,
        "dcp_size": parallel.decode_context_parallel_size,
        "pcp_size": parallel.prefill_context_parallel_size,
        "hash_algorithm": cache.prefix_caching_hash_algo,
        "hash_seed": hash_seed(cache.prefix_caching_hash_algo),
        "checksum": "xxh3",
    }


def _caches(kv_cache_config: Any, hidden_layers: int) -> list[dict[str, Any]]:
    """Every cache with the bytes of its page and its offset: in the packed block, or after the pages before it."""
    packed = kv_cache_config.kv_cache_layout in _BLOCK_OUTERMOST
    places: dict[str, tuple[int, int]] = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        # Of the two strides the smaller is the page: the other passes all blocks, or all layers.
        page = min(tensor.layer_stride, tensor.block_stride)
        for at, name in enumerate(tensor.layers):
            places[name] = (page, tensor.offset + at * tensor.layer_stride)
    found, after = [], 0
    for name in [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]:
        page, offset = places[name]
        kind = "indexer" if is_indexer(name) else "mla"
        mtp = is_prediction(name, hidden_layers)
        found.append({"name": name, "kind": kind, "mtp": mtp, "nbytes": page, "offset": offset if packed else after})
        after += page
    return found


def _dtypes(vllm_config: Any) -> list[str]:
    """The cache dtype of the model and of its draft, never ``auto``."""
    plain = str(vllm_config.model_config.dtype).removeprefix("torch.")
    draft = getattr(vllm_config.speculative_config, "kv_cache_dtype", None)
    return [plain if one == "auto" else str(one) for one in (vllm_config.cache_config.cache_dtype, draft) if one]


def _prediction_layers(vllm_config: Any) -> int:
    draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
    return int(getattr(draft.hf_config, "num_nextn_predict_layers", 0) or 0) if draft is not None else 0


def _fingerprints(vllm_config: Any, folder: Path | None) -> str:
    """Of the model, and of a draft that lies elsewhere."""
    if folder is None or vllm_config.load_config.load_format == "dummy":
        raise KeyRefused(
            f"model={vllm_config.model_config.model!r} load_format={vllm_config.load_config.load_format!r}",
            "there are no weight files on this machine, and keys must tell weights apart",
            "a folder, a model in the local hub cache, or a name for the weights",
            'Give "weights", a text that changes with the weights, under kv_connector_extra_config.mooncake_tier',
        )
    found = [fingerprint(folder)]
    draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        other = _folder(draft, vllm_config.load_config)
        if other is None:
            raise KeyRefused(
                f"draft model={draft.model!r}",
                "its weights decide bytes of every block, and they are not on this machine",
                "a folder, a model in the local hub cache, or a name for all weights",
                'Give "weights" under kv_connector_extra_config.mooncake_tier',
            )
        found.append(fingerprint(other))
    return "+".join(found)


def _folder(model: Any, load_config: Any) -> Path | None:
    """Where this machine has the checkpoint's files; None if it does not."""
    if getattr(model, "model_weights", ""):  # streamed from an object store
        return None
    if Path(model.model).is_dir():
        return Path(model.model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            model.model, revision=model.revision, cache_dir=load_config.download_dir, local_files_only=True
        )
    except (LocalEntryNotFoundError, ValueError, OSError):
        return None
    return Path(found) if any(Path(found).glob("*.safetensors")) else None


def _commit(folder: Path | None) -> str:
    """The commit of a folder of the hub's cache, which names it so."""
    return folder.name if folder is not None and folder.parent.name == "snapshots" else ""


def _computed(vllm_config: Any, config: Mapping[str, Any]) -> str:
    """Digest of what else decides how the weights are used: dtype, quantization, and config.json after overrides."""
    model = vllm_config.model_config
    text = {name: value for name, value in config.items() if name not in ("_name_or_path", "transformers_version")}
    settled = {"dtype": str(model.dtype), "quantization": model.quantization, "config": text}
    return hashlib.sha256(json.dumps(settled, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _refuse_what_has_no_key(vllm_config: Any, kv_cache_config: Any, named: Identity) -> None:
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages != 1:
        raise KeyRefused(
            f"pipeline_parallel_size={stages}",
            "a stage has only a part of the layers, and which caches it must have is not known",
            "1, with tensor, data and expert parallelism",
            "Serve it without this tier",
        )
    if getattr(kv_cache_config, "hisparse_host_num_blocks", None) is not None:
        raise KeyRefused(
            "hisparse_config is set",
            "the MLA caches lie in host memory, and blocks would hold the indexers alone",
            "caches on the device",
            "Serve it without HiSparse or without this tier",
        )
    if vllm_config.lora_config is not None and not named.adapter:
        raise KeyRefused(
            "LoRA is enabled and adapter is empty",
            "vLLM's block hashes have the adapter's name alone, and another adapter may have the same",
            "a text that names every adapter with its revision",
            'Give "adapter" under kv_connector_extra_config.mooncake_tier',
        )
