"""Pages of a GQA draft model inside the block rows of an MLA target: which they are, and where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

if TYPE_CHECKING:
    import torch

__all__ = ["head_sharded", "places"]


def head_sharded(specs: Mapping[str, Any]) -> list[str]:
    """Layers whose pages differ from one tensor-parallel rank to the next: the GQA layers of a draft model.

    specs: layer name -> cache specification.
    """
    replicated = (MLAAttentionSpec, SlidingWindowMLASpec)
    return sorted(name for name, spec in specs.items() if not isinstance(spec, replicated))


def places(
    kv_caches: Mapping[str, torch.Tensor], specs: Mapping[str, Any], layers: Iterable[str], base: int
) -> dict[str, tuple[int, int]]:
    """Offset and length, in bytes, of these layers' pages in a row; base: address of the first row."""
    return {name: (kv_caches[name].data_ptr() - base, specs[name].page_size_bytes) for name in layers}
