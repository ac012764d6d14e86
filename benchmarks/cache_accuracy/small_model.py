"""The small GLM-5.3-shaped model with latents of GLM's sizes, and prompts for it."""

from __future__ import annotations

import math
import random
from pathlib import Path

from cache_accuracy.synthetic import CREST, layer_sizes

__all__ = ["LAYERS", "make_model", "prompts"]

LAYERS = 6
EMBEDDING, ADDED = 16.0, 0.25
"""Factors of the embeddings, and of the last projection of attention, MLP and experts."""


def make_model(folder: Path, seed: int = 0) -> None:
    """Write the model, in bfloat16, with each layer's latents as large as its place in the depth asks for.

    The norm's weight is multiplied, and ``kv_b_proj`` divided, by a power of two, so with a bfloat16 cache the model
    computes what it would without that, bit for bit. The published sizes are spread over its few layers.

    Random layers turn a small error into another answer, where trained ones damp it. So embeddings are larger here, and
    what a layer adds to them smaller, than in the model of ``glm53 model make``.
    """
    from safetensors.torch import load_file, save_file

    from glm53.model import make

    make(folder, layers=LAYERS, dtype="bfloat16", seed=seed)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for layer, largest in enumerate(layer_sizes(LAYERS)):
        prefix = f"model.layers.{layer}.self_attn."
        factor = 2.0 ** round(math.log2(largest / CREST))
        tensors[f"{prefix}kv_a_layernorm.weight"] *= factor
        tensors[f"{prefix}kv_b_proj.weight"] /= factor
    tensors["model.embed_tokens.weight"] *= EMBEDDING
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= ADDED
    save_file(tensors, file, metadata={"format": "pt"})


def prompts(count: int, seed: int = 0) -> list[str]:
    """Texts of words without a meaning, about 300 characters each, which are as many tokens of that model."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word() -> str:
        return "".join(rng.choices(letters, k=rng.randint(2, 9)))

    return [" ".join(word() for _ in range(46)) for _ in range(count)]
