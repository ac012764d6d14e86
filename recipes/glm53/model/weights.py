"""Random weights under the names of a real checkpoint, the same bytes for a seed on every machine.

The numbers are sums of integers taken from PCG64's raw output, scaled once: integer arithmetic and a single
rounding leave nothing to the version of numpy or to the processor. Each tensor draws from a stream of its
own, named by seed and tensor, so that models which differ in depth agree in the layers they share.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glm53.model.shape import (
    DENSE_LAYERS,
    INDEX_DIM,
    KV_LORA_RANK,
    NOPE_DIM,
    Q_LORA_RANK,
    ROPE_DIM,
    VALUE_DIM,
    Shape,
)
from glm53.model.tokens import VOCABULARY

__all__ = ["Tensor", "tensors", "values", "write"]

Kind = Literal["matrix", "norm", "bias"]
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Tensor:
    """Name and dimensions of one tensor of the checkpoint, and how its values are drawn."""

    name: str
    dims: tuple[int, ...]
    kind: Kind = "matrix"
    exact: bool = False
    """Stays float32 in a bfloat16 model."""
    copy_of: str = ""
    """The tensor whose values it repeats."""


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every tensor of the model, in the order of the layers."""
    embedding = Tensor("model.embed_tokens.weight", (len(VOCABULARY), shape.hidden))
    head = Tensor(_HEAD, embedding.dims)
    yield embedding
    for layer, indexed in enumerate(shape.indexed):
        yield from _layer(shape, f"model.layers.{layer}.", indexed, dense=layer < DENSE_LAYERS)
    yield Tensor("model.norm.weight", (shape.hidden,), "norm")
    yield head
    if shape.mtp:
        prefix = f"model.layers.{shape.layers}."
        yield from _layer(shape, prefix, indexed=True, dense=False)
        yield Tensor(prefix + "embed_tokens.weight", embedding.dims, copy_of=embedding.name)
        yield Tensor(prefix + "enorm.weight", (shape.hidden,), "norm")
        yield Tensor(prefix + "hnorm.weight", (shape.hidden,), "norm")
        yield Tensor(prefix + "eh_proj.weight", (shape.hidden, 2 * shape.hidden))
        yield Tensor(prefix + "shared_head.norm.weight", (shape.hidden,), "norm")
        yield Tensor(prefix + "shared_head.head.weight", head.dims, copy_of=head.name)


def _layer(shape: Shape, prefix: str, indexed: bool, dense: bool) -> Iterator[Tensor]:
    hidden, heads = shape.hidden, shape.heads
    yield Tensor(prefix + "input_layernorm.weight", (hidden,), "norm")
    yield Tensor(prefix + "post_attention_layernorm.weight", (hidden,), "norm")
    attention = prefix + "self_attn."
    yield Tensor(attention + "q_a_proj.weight", (Q_LORA_RANK, hidden))
    yield Tensor(attention + "q_a_layernorm.weight", (Q_LORA_RANK,), "norm")
    yield Tensor(attention + "q_b_proj.weight", (heads * (NOPE_DIM + ROPE_DIM), Q_LORA_RANK))
    yield Tensor(attention + "kv_a_proj_with_mqa.weight", (KV_LORA_RANK + ROPE_DIM, hidden))
    yield Tensor(attention + "kv_a_layernorm.weight", (KV_LORA_RANK,), "norm")
    yield Tensor(attention + "kv_b_proj.weight", (heads * (NOPE_DIM + VALUE_DIM), KV_LORA_RANK))
    yield Tensor(attention + "o_proj.weight", (hidden, heads * VALUE_DIM))
    if indexed:
        yield Tensor(attention + "indexer.wq_b.weight", (shape.index_head_count * INDEX_DIM, Q_LORA_RANK))
        yield Tensor(attention + "indexer.wk.weight", (INDEX_DIM, hidden))
        yield Tensor(attention + "indexer.k_norm.weight", (INDEX_DIM,), "norm")
        yield Tensor(attention + "indexer.k_norm.bias", (INDEX_DIM,), "bias")
        yield Tensor(attention + "indexer.weights_proj.weight", (shape.index_head_count, hidden))
    if dense:
        yield from _gated(prefix + "mlp.", hidden, 2 * hidden)
        return
    yield Tensor(prefix + "mlp.gate.weight", (shape.experts, hidden))
    yield Tensor(prefix + "mlp.gate.e_score_correction_bias", (shape.experts,), "bias", exact=True)
    for expert in range(shape.experts):
        yield from _gated(f"{prefix}mlp.experts.{expert}.", hidden, hidden // 2)
    yield from _gated(prefix + "mlp.shared_experts.", hidden, hidden // 2)


def _gated(prefix: str, hidden: int, inner: int) -> Iterator[Tensor]:
    yield Tensor(prefix + "gate_proj.weight", (inner, hidden))
    yield Tensor(prefix + "up_proj.weight", (inner, hidden))
    yield Tensor(prefix + "down_proj.weight", (hidden, inner))


def values(tensor: Tensor, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The float32 values of ``tensor``, shape ``tensor.dims``.

    Matrices have a standard deviation of 1.6 / sqrt(columns): large enough that attention is far from
    uniform and that a wrong choice of positions changes the answer.
    """
    source = tensor.copy_of or tensor.name
    normal = _normal(prod(tensor.dims), seed, source).reshape(tensor.dims)
    if tensor.kind == "norm":
        return np.float32(1) + np.float32(0.1) * normal
    if tensor.kind == "bias":
        return np.float32(0.05) * normal
    scaled = np.float32(1.6 / sqrt(tensor.dims[-1])) * normal
    if source == _HEAD:
        scaled[~_readable()] *= np.float32(0.25)
        scaled[_whitespace()] = 0
    return scaled


def _normal(count: int, seed: int, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Nearly normal numbers of mean 0 and deviation 1: sums of eight 16-bit integers."""
    stream = np.random.PCG64([seed, zlib.crc32(name.encode())])
    parts = stream.random_raw(2 * count).astype("<u8").view("<u2").reshape(count, 8)
    centred = 2 * parts.sum(axis=1, dtype=np.int64) - 8 * 0xFFFF
    return (centred / sqrt(4 * 8 * (0x10000**2 - 1) / 12)).astype(np.float32)


def _readable() -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tokens that are ASCII text. The output head prefers them, so greedy answers can be read as they stream
    and do not end by chance at a turn marker."""
    return np.array([0x20 < token < 0x7F for token in range(len(VOCABULARY))])


def _whitespace() -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tokens that are white space. The grammars of tool calls allow it without end between the parts of a call;
    a logit of 0 loses against every part whose logit is positive, so forced calls come to their end."""
    return np.array([token < 0x80 and chr(token).isspace() for token in range(len(VOCABULARY))])


def write(shape: Shape, path: Path) -> None:
    """Write the checkpoint as one safetensors file.

    The format is a length, a JSON header and the plain data; written here rather than by a library because
    libraries order tensors as they please, and equal models must be equal files.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs = []
    end = 0
    for tensor in tensors(shape):
        single = shape.dtype == "float32" or tensor.exact
        data = values(tensor, shape.seed).astype("<f4")
        blobs.append(data.tobytes() if single else _bfloat16(data).tobytes())
        start, end = end, end + len(blobs[-1])
        header[tensor.name] = {
            "dtype": "F32" if single else "BF16",
            "shape": list(tensor.dims),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([struct.pack("<Q", len(text)), text, *blobs]))


def _bfloat16(data: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The upper halves of finite float32 values, rounded to nearest, ties to even."""
    bits = data.view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
