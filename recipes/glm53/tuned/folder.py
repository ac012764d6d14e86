"""What training wrote: a whole checkpoint, or a LoRA adapter, and what a recipe must say of it."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm53.checks import check_model_folder
from glm53.model import ModelError

__all__ = ["Tuned", "read"]

#: What cache sizes, parallelism and weights of every recipe follow from; GLM-5.3's published config.json.
_GLM53 = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
_ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FAMILY = re.compile(r"(^|[/-])GLM-5\.3(-(NVFP4|FP8|BF16))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Tuned:
    """place: where the folder belongs in the volume. overrides: section -> key -> value of the recipe.

    longest: tokens of the longest sequence that the model was made for; None where it does not say. notes: what was
    found that changes the recipe, for people.
    """

    place: str
    overrides: dict[str, dict[str, Any]]
    longest: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def adapter(self) -> bool:
        """Whether it is a LoRA adapter beside its base model."""
        return bool(self.overrides["model"].get("adapters"))


def read(folder: Path, name: str, repository: str, mount: str) -> Tuned:
    """What `folder` holds, served as `name`.

    repository: the base model of an adapter, on the hub. mount: where workers see the volume. Raises `ModelError` for a
    folder that is not whole, is no GLM-5.3, or holds what vLLM does not serve.
    """
    if (folder / _ADAPTER).is_file():
        return _adapter(folder, name, repository, mount)
    check_model_folder(folder)
    config = _json(folder / "config.json")
    for key, needed in _GLM53.items():
        if config.get(key) != needed:
            raise ModelError(
                f"{folder}/config.json: {key}={config.get(key)!r}, and GLM-5.3 has {needed!r}. A recipe's groups, "
                "cache and memory are computed for GLM-5.3. Give the folder of a model that was trained from it."
            )
    if not (folder / "chat_template.jinja").is_file() and not _json(folder / "tokenizer_config.json").get(
        "chat_template"
    ):
        raise ModelError(
            f"{folder} has no chat template, neither chat_template.jinja nor in tokenizer_config.json, so that no chat "
            "request could be answered. Copy the base model's chat_template.jinja into it."
        )
    notes, engine = [], {}
    layer = config["num_hidden_layers"]
    if not any(tensor.startswith(f"model.layers.{layer}.") for tensor in _tensors(folder)):
        engine["mtp_depth"] = 0
        notes.append("the checkpoint has no prediction layer: mtp_depth is 0, and decoding takes more steps")
    overrides: dict[str, dict[str, Any]] = {
        "model": {"path": f"checkpoints/{name}", "served_name": name, "weights": _weights(folder, config)},
        "engine": engine,
    }
    longest = config.get("max_position_embeddings")
    if longest is not None and not isinstance(longest, int):
        raise ModelError(
            f"{folder}/config.json: max_position_embeddings={longest!r} is no whole number. Correct or remove it."
        )
    return Tuned(f"checkpoints/{name}", overrides, longest, tuple(notes))


def _adapter(folder: Path, name: str, repository: str, mount: str) -> Tuned:
    config = _json(folder / _ADAPTER)
    if not (folder / _ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"{folder} has {_ADAPTER} and no {_ADAPTER_WEIGHTS}. Give the whole adapter, as peft saves it."
        )
    base, rank = str(config.get("base_model_name_or_path") or ""), config.get("r")
    if not _FAMILY.search(base.rstrip("/")):
        raise ModelError(
            f"{folder}/{_ADAPTER}: base_model_name_or_path={base!r} is no GLM-5.3, and an adapter fits its base only. "
            "Give an adapter of GLM-5.3, or correct the entry if the base had a name of its own."
        )
    if config.get("peft_type") != "LORA" or not isinstance(rank, int) or not 0 < rank <= 512:
        raise ModelError(
            f"{folder}/{_ADAPTER}: peft_type={config.get('peft_type')!r} with r={rank!r}; vLLM serves LORA "
            "adapters with r from 1 to 512. Merge it into a checkpoint, and give that folder."
        )
    for key, good in (("use_dora", (None, False)), ("modules_to_save", (None, [])), ("bias", (None, "none"))):
        if config.get(key) not in good:
            raise ModelError(
                f"{folder}/{_ADAPTER}: {key}={config.get(key)!r}, which vLLM's LoRA does not serve. Merge the adapter "
                "into a checkpoint, and give that folder."
            )
    place = f"adapters/{name}"
    adapter = {"name": name, "uri": f"file://{mount}/{place}", "rank": rank}
    return Tuned(place, {"model": {"path": None, "repository": repository, "adapters": [adapter]}, "engine": {}})


def _weights(folder: Path, config: dict[str, Any]) -> str:
    """bf16, fp8 or nvfp4, as `quantization_config`, or ModelOpt's file beside it, says."""
    beside = folder / "hf_quant_config.json"
    stored = config.get("quantization_config") or (_json(beside).get("quantization") if beside.is_file() else None)
    if not stored:
        dtype = config.get("dtype") or config.get("torch_dtype")
        if dtype == "bfloat16":
            return "bf16"
        raise ModelError(f"{folder}/config.json: dtype={dtype!r} without quantization; bfloat16 is served.")
    if not isinstance(stored, dict):
        raise ModelError(f"{folder}/config.json: quantization_config={stored!r} is no object. Give a complete folder.")
    said = " ".join(str(stored.get(key, "")) for key in ("quant_method", "quant_algo", "format")).lower()
    for kind in ("nvfp4", "fp8"):
        if kind in said:
            return kind
    raise ModelError(
        f"{folder}/config.json: quantized as {said.strip()!r}. Recipes know bf16, fp8 and nvfp4. Quantize it to one of "
        "them, or write a recipe by hand."
    )


def _tensors(folder: Path) -> set[str]:
    """Names of all tensors, from the index or from the header of each file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        placed = _json(index).get("weight_map")
        if not isinstance(placed, dict):
            raise ModelError(f"{index}: weight_map={placed!r} is no object. Give a complete folder.")
        return set(placed)
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))  # safetensors: the header's length, then JSON
                names |= dict(json.loads(file.read(min(length, path.stat().st_size)))).keys()
        except (struct.error, ValueError, TypeError, RecursionError) as error:
            raise ModelError(f"{path} has no header of safetensors ({error}). Copy it again, whole.") from error
    return names


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}). Give a complete folder.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not an object. Give a complete folder.")
    return value
