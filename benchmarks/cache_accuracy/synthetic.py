"""Errors of rows and of attention for latents as a norm makes them, layer by layer of GLM's sizes.

Published of GLM are the largest latent elements of its layers with the smallest and the largest, 0.02 and 5.2. The
layers between are taken to grow by equal factors, and a layer's root mean square to be its largest element over 8.5,
both assumptions. Within a layer tokens are Gaussian or of Student's t with 4 degrees of freedom, normalized, and
multiplied by a norm weight whose largest channel is three times the smallest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cache_accuracy.settings import SETTINGS, Setting
from flashinfer_nvfp4.codec import decode_rows, encode_rows
from flashinfer_nvfp4.fold import fold_exponent

__all__ = ["COMPARED", "CREST", "KINDS", "LAYERS", "Errors", "layer_errors", "layer_sizes"]

LAYERS = 78
SMALLEST, LARGEST = 0.02, 5.2
CREST = 8.5
KINDS = ("Gaussian", "Student-t4")

HEADS, TOKENS = 16, 8
LOGIT_DEVIATION = 2.0
"""Standard deviation of the attention logits: between a flat choice (1) and one of few keys (3)."""

COMPARED = tuple(setting for setting in SETTINGS if setting.cache_dtype != "fp8_ds_mla")
Errors = dict[str, float]
"""Relative squared error by the name of the setting."""


@dataclass(frozen=True)
class Layer:
    """One layer's norm weight [512], and of its keys the latent [n, 512] and RoPE part [n, 64], all bfloat16."""

    weight: torch.Tensor
    latent: torch.Tensor
    rope: torch.Tensor


def layer_sizes(layers: int = LAYERS) -> list[float]:
    """Largest latent element of each layer."""
    growth = (LARGEST / SMALLEST) ** (1 / max(layers - 1, 1))
    return [SMALLEST * growth**layer for layer in range(layers)]


def layer_errors(kind: str, layer: int, keys: int, seed: int) -> tuple[Errors, Errors]:
    """Of all settings, the error of the latent rows of ``keys`` tokens, and of the output of attention over them.

    Both are squared, against the bfloat16 latents, relative to these and to the float64 output from these.
    """
    generator = torch.Generator().manual_seed(1000 * seed + 2 * layer + KINDS.index(kind))
    drawn = _layer(kind, layer_sizes()[layer], keys, generator)
    query = _query(drawn, generator)
    exact = _attention(query, drawn.latent.double(), drawn.rope.double())
    rows: Errors = {}
    outputs: Errors = {}
    for setting in COMPARED:
        latent, rope = _stored(setting, drawn)
        rows[setting.name] = _relative(latent, drawn.latent.double())
        outputs[setting.name] = _relative(_attention(query, latent, rope), exact)
    return rows, outputs


def _layer(kind: str, largest: float, keys: int, generator: torch.Generator) -> Layer:
    tokens = torch.randn(keys, 512, generator=generator)
    if kind == "Student-t4":  # a normal value over the root of a chi-squared one's mean
        tokens /= torch.randn(4, keys, 512, generator=generator).square().mean(0).sqrt()
    tokens *= torch.rsqrt(tokens.square().mean(-1, keepdim=True))
    channels = torch.rand(512, generator=generator) + 0.5
    weight = (channels / channels.square().mean().sqrt() * (largest / CREST)).bfloat16()
    rope = torch.randn(keys, 64, generator=generator).bfloat16()
    return Layer(weight, (tokens * weight.float()).bfloat16(), rope)


def _query(layer: Layer, generator: torch.Generator) -> torch.Tensor:
    """float64 [tokens, heads, 576]; latent and RoPE elements have equal shares in the logits' variance."""
    query = torch.randn(TOKENS, HEADS, 576, generator=generator).double() * LOGIT_DEVIATION / 576**0.5
    query[..., :512] /= layer.latent.double().square().mean().sqrt()
    return query


def _stored(setting: Setting, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """What a reader of the cache gets, float64, the fold taken out again as ``kv_b_proj`` does."""
    if setting.policy is None:
        latent, rope = (_fp8(part) for part in (layer.latent, layer.rope))
        return latent, rope
    factor = 2.0 ** (fold_exponent(layer.weight) if setting.fold else 0)
    latent, rope = decode_rows(encode_rows(layer.latent * factor, layer.rope, setting.policy))
    return latent.double() / factor, rope.double()


def _fp8(values: torch.Tensor) -> torch.Tensor:
    """The stock per-tensor FP8 cache with its default scale of 1."""
    return values.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()


def _attention(query: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    logits = query @ torch.cat((latent, rope), -1).T
    return logits.softmax(-1) @ latent


def _relative(values: torch.Tensor, exact: torch.Tensor) -> float:
    return ((values - exact).square().mean() / exact.square().mean()).item()
