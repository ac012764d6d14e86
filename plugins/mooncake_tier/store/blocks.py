"""Where the pages of a block lie in a worker's memory, as few ranges as possible, in the order of the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_tier.errors import SettingRefused

__all__ = ["BlockMemory", "Pages", "pages_of"]


@dataclass(frozen=True)
class Pages:
    """The pages of one cache. address: of block 0. stride: bytes from block to block. nbytes: of one page."""

    address: int
    stride: int
    nbytes: int


class BlockMemory:
    """The memory of blocks. pages: one entry a cache, in the order in which a block's object has them."""

    def __init__(self, pages: Sequence[Pages]) -> None:
        if not pages:
            raise ValueError("pages=[]: a block has at least one page. Pass the caches of the model.")
        self.nbytes = sum(one.nbytes for one in pages)
        self.runs: list[Pages] = []
        for one in pages:
            last = self.runs[-1] if self.runs else None
            if last and last.stride == one.stride and last.address + last.nbytes == one.address:
                self.runs[-1] = Pages(last.address, last.stride, last.nbytes + one.nbytes)
            else:
                self.runs.append(one)

    def parts(self, block: int) -> tuple[tuple[int, int], ...]:
        """Address and bytes of the ranges of one block."""
        return tuple((run.address + block * run.stride, run.nbytes) for run in self.runs)


def pages_of(kv_cache_config: Any, caches: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]) -> list[Pages]:
    """The pages of each cache by its offset in the object.

    kv_cache_config: a vLLM worker's. caches: as `mooncake_tier.identity.deployment.namespace_fields` lists them.
    tensors: layer name -> tensor of (blocks, ...), as vLLM registers them. Raises `SettingRefused` if a cache is
    missing, or if a tensor does not lie where the configuration says.
    """
    placed: dict[str, tuple[Any, int]] = {
        name: (group, at) for group in kv_cache_config.kv_cache_tensors for at, name in enumerate(group.layers)
    }
    found = []
    for cache in sorted(caches, key=lambda one: int(one["offset"])):
        name, nbytes = cache["name"], int(cache["nbytes"])
        tensor = tensors.get(name)
        if name not in placed or not hasattr(tensor, "data_ptr"):
            raise _refused(name, "it was not registered", "every cache of the model")
        assert tensor is not None
        group, at = placed[name]
        expected = group.offset + at * group.layer_stride
        lies = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
        if lies != expected:
            raise _refused(name, f"it lies {lies} bytes into its memory and not {expected}", "vLLM's placement")
        # A backend may cut a block into several of its own; together they take the block's stride.
        stride = tensor.stride(0) * tensor.element_size() * (tensor.shape[0] // kv_cache_config.num_blocks)
        if tensor.shape[0] % kv_cache_config.num_blocks or (tensor.shape[0] > 1 and stride != group.block_stride):
            raise _refused(
                name,
                f"its shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} do not give "
                f"{kv_cache_config.num_blocks} blocks of {group.block_stride} bytes",
                "vLLM's placement",
            )
        found.append(Pages(tensor.data_ptr(), group.block_stride, nbytes))
    return found


def _refused(name: str, seen: str, allowed: str) -> SettingRefused:
    return SettingRefused(
        f"cache {name!r}", f"{seen}, so its bytes cannot be stored", allowed, "Report it with vLLM's version and layout"
    )
