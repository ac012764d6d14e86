"""Which tensors of a model a latent fold concerns, by name: the norm that makes the latent, and what consumes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from flashinfer_nvfp4.errors import FoldRefused

__all__ = ["NORM", "Share", "check_apart", "layers_of", "mla_tensors"]

PARTS = re.compile(r"\b(?:kv_a_layernorm|kv_b_proj)\.")
NORM = re.compile(r"(?P<layer>(?:.*\.)?)kv_a_layernorm\.weight")
SCALES = ("weight_scale_inv", "weight_scale_2", "weight_scale")
"""What multiplies a quantized weight, the outermost first: FP8 in blocks, ModelOpt's NVFP4, FP8 and MXFP8."""
KNOWN = {"weight", "bias", "input_scale", *SCALES}


@dataclass(frozen=True)
class Share:
    """One tensor of a layer: ``sign`` +1 takes the fold's factor, -1 its reciprocal."""

    name: str
    tensor: torch.Tensor
    sign: int


def mla_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module tree that a fold concerns, by name, for `LatentFolds.apply`."""
    named = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    return {name: tensor for name, tensor in named.items() if PARTS.search(name)}


def layers_of(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, list[Share]]]:
    """Layer name and its shares, the norm first."""
    found = False
    for name, norm in tensors.items():
        if not (match := NORM.fullmatch(name)):
            continue
        found = True
        prefix = match["layer"]
        layer = prefix.removesuffix(".")
        if f"{prefix}kv_a_layernorm.bias" in tensors:
            raise FoldRefused(
                f"{layer}: kv_a_layernorm with a bias",
                "it is no plain RMS norm",
                "a weight only",
                "Leave the model unfolded",
            )
        projection = f"{prefix}kv_b_proj."
        parts = {n.removeprefix(projection): tensor for n, tensor in tensors.items() if n.startswith(projection)}
        yield layer, [Share(name, norm, 1), *_projection_shares(layer, projection, parts)]
    if not found:
        raise FoldRefused(
            f"{len(tensors)} tensors",
            "none is an MLA latent norm",
            "names with kv_a_layernorm.weight",
            "Pass an MLA model",
        )


def check_apart(shares: Iterable[Share]) -> None:
    seen: dict[int, str] = {}
    for share in shares:
        place = share.tensor.data_ptr()
        if place and (first := seen.setdefault(place, share.name)) != share.name:
            raise FoldRefused(
                f"{first} and {share.name} in one memory",
                "it would take the factor of both layers",
                "a tensor of its own for each name",
                "Pass a tensor once, or clone it",
            )


def _projection_shares(layer: str, prefix: str, parts: Mapping[str, torch.Tensor]) -> Iterator[Share]:
    """What of ``kv_b_proj`` takes the reciprocal factor, and what scales its input and takes the factor itself."""
    if not {"weight"} <= set(parts) <= KNOWN:
        raise FoldRefused(
            f"{layer}: kv_b_proj with {', '.join(sorted(parts)) or 'no tensors'}",
            "it is not known which of them carries the size of the weight",
            f"weight, and of {', '.join(sorted(KNOWN - {'weight'}))} what there is",
            "Leave this model unfolded, or pass the tensors as loaded, before anything is repacked",
        )
    target = next((name for name in SCALES if name in parts), "weight")
    yield Share(prefix + target, parts[target], -1)
    if "input_scale" in parts:
        yield Share(f"{prefix}input_scale", parts["input_scale"], 1)
