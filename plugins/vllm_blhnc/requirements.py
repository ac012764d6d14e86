"""What has no rows to move, refused by name before a worker registers anything."""

from __future__ import annotations

from typing import Any

from vllm_blhnc.checks import LayoutError
from vllm_blhnc.settings import KEY

__all__ = ["no_common_block", "refuse_configuration", "refuse_groups", "refuse_split_blocks"]

_STOCK = f'kv_connector_extra_config.{KEY}.layout="stock"'


def refuse_configuration(vllm_config: Any) -> None:
    """Raise `LayoutError` for a model or a parallel shape of which no worker holds whole rows."""
    if not vllm_config.model_config.use_mla:
        raise LayoutError(
            f"model {vllm_config.model_config.model} has no MLA, and only MLA pages, which every tensor-parallel "
            f"rank holds whole, can travel as rows. Serve an MLA model, or set {_STOCK}."
        )
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise LayoutError(
            f"pipeline_parallel_size={stages}: a stage holds only part of each row, so there are no whole rows "
            f"to move. Use --pipeline-parallel-size 1, or set {_STOCK}."
        )
    if vllm_config.attention_config.hisparse_config is not None:
        raise LayoutError(
            "hisparse_config is set: HiSparse keeps MLA pages in host memory and only the others in rows. Serve "
            "without HiSparse, or run this engine and its peers without the plugin (leave kv_connector_module_path "
            "out)."
        )


def refuse_groups(kv_cache_config: Any, sharded: list[str], context_parallel: tuple[int, int]) -> None:
    """Raise `LayoutError` unless all caches share one block table, and drafts are split by heads alone.

    sharded: from `draft_pages.head_sharded`. context_parallel: decode and prefill context-parallel size.
    """
    groups = kv_cache_config.transfer_groups
    if len(groups) > 1:
        seen = "; ".join(
            f"{_kind(group.kv_cache_spec)} of {len(group.layer_names)} layers from {group.layer_names[0]}"
            for group in groups
        )
        raise LayoutError(
            f"{len(groups)} KV cache groups ({seen}): their pages share the same bytes of a row, and a block of "
            "one holds nothing of the others, so rows would move stale pages. One group is needed: use a draft "
            f"model without sliding windows (--speculative-config), or set {_STOCK}."
        )
    if sharded and max(context_parallel) > 1:
        raise LayoutError(
            f"decode_context_parallel_size={context_parallel[0]} and prefill_context_parallel_size="
            f"{context_parallel[1]} with draft layers {sharded[0]} and {len(sharded) - 1} more: tokens of the MLA "
            "caches are split over ranks and those of the draft are not, so a row has no common position. Use "
            f"context-parallel sizes of 1, leave --speculative-config out, or set {_STOCK}."
        )


def refuse_split_blocks(asked: int, kernel: int) -> None:
    """Raise `LayoutError` if attention computes on smaller blocks than are cached. Both sizes in tokens."""
    if asked != kernel:
        raise LayoutError(
            f"block_size={asked}, but this platform's attention backends compute on blocks of {kernel} tokens, "
            f"and the pages of a row cannot be split. Set --block-size {kernel} on prefill and decode, or set "
            f"{_STOCK}."
        )


def no_common_block(asked: int, said: str) -> LayoutError:
    """For a block size of which vLLM says that its attention backends have no kernel. asked: in tokens."""
    return LayoutError(
        f"block_size={asked}: {said} Set --block-size on prefill and decode to a size that all these backends list, "
        "or to a multiple of it where they list multiples."
    )


def _kind(spec: Any) -> str:
    """The type of a group's specification, or of its layers' where the group's own only holds theirs."""
    return type(next(iter(getattr(spec, "kv_cache_specs", {}).values()), spec)).__name__
