"""What this plugin replaces in stock packages, each record only when a setting asks for it."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from stockpatch.register import Patch, Register
from stockpatch.versions import Window
from vllm_blhnc.alignment import with_aligned_rows
from vllm_blhnc.stock import NIXL, VLLM, VLLM_SINCE_033, VLLM_UNTIL_032

__all__ = ["REGISTER", "ROW_ALIGNMENT", "follow_the_requests_blocks", "set_progress_delay"]

_delay_us: int | None = None


def set_progress_delay(microseconds: int) -> None:
    """Let NIXL agents made from now on sleep this long between polls of their progress thread."""
    global _delay_us
    _delay_us = microseconds
    REGISTER.apply(["nixl-progress-delay"])


def _with_delay(original: Any) -> Any:
    @functools.wraps(original, updated=())
    def agent(name: str, config: Any) -> Any:
        if _delay_us is not None:
            config.pthrDelay = _delay_us
        return original(name, config)

    return agent


def _delay_is_settable() -> bool:
    parameters = inspect.signature(importlib.import_module("nixl._api").nixl_agent_config).parameters
    return any("delay" in name.lower() for name in parameters)


def follow_the_requests_blocks() -> None:
    """Tell queues that hand out runs which block new ones are to follow."""
    REGISTER.apply(["blocks-follow-the-request"])


def _with_last_block(original: Any) -> Any:
    @functools.wraps(original)
    def allocate_new_blocks(self: Any, request_id: str, num_tokens: int, num_tokens_main_model: int) -> Any:
        following = getattr(self.block_pool.free_block_queue, "following", None)
        blocks = self.req_to_blocks.get(request_id)
        if following is None or not blocks:
            return original(self, request_id, num_tokens, num_tokens_main_model)
        with following(blocks[-1].block_id):
            return original(self, request_id, num_tokens, num_tokens_main_model)

    return allocate_new_blocks


def _pool_takes_a_hint() -> bool:
    pool = importlib.import_module("vllm.v1.core.block_pool").BlockPool
    return len(inspect.signature(pool.get_new_blocks).parameters) > 2


def _stock_keeps_pages() -> bool:
    backends = importlib.import_module("vllm.v1.attention.backends.mla.flashinfer_mla_sparse")
    sizes = backends.FlashInferMLASparseTRTLLMBackend.get_supported_kernel_block_sizes()
    return all(getattr(size, "base", size) >= 64 for size in sizes)


def _row_alignment(id: str, module: str, window: Window) -> Patch:
    return Patch(
        id=id,
        target=f"vllm.v1.core.{module}:get_kv_cache_groups",
        window=window,
        why="TRTLLM-gen reads a block-outermost cache in the largest pages that divide the block stride, and vLLM "
        "aligns the stride to 32 tokens (0.31: to 1) with no setting for more. The replacement gives the MLA caches' "
        "specifications the alignment of row_alignment_tokens before the engine core groups them and sizes the cache.",
        upstream="https://github.com/vllm-project/vllm/pull/55528",
        remove_when="vLLM's TRTLLM-gen backend aligns blocks to 64 tokens, or has a setting for it.",
        expects=("vllm_config", "kv_cache_spec"),
        replace=with_aligned_rows,
        obsolete=_stock_keeps_pages,
        optional_outside=True,
    )


#: The records of which one applies to each release: vLLM 0.33 moved the function.
ROW_ALIGNMENT = ("row-alignment-until-0.32", "row-alignment")

REGISTER = Register(
    "vllm_blhnc",
    (
        Patch(
            id="nixl-progress-delay",
            target="nixl._bindings:nixlAgent",
            window=NIXL,
            why="NIXL's Python agent sets the progress thread's poll delay to 0 and takes no argument for it, "
            "so every worker burns one core; with few cores the engine starves behind it. The replacement sets "
            "the delay of the deployment's progress_delay_us before the agent is made.",
            upstream="https://github.com/ai-dynamo/nixl/blob/main/src/api/python/_api.py",
            remove_when="nixl_agent_config takes the progress thread's delay.",
            expects=None,
            replace=_with_delay,
            obsolete=_delay_is_settable,
        ),
        Patch(
            id="blocks-follow-the-request",
            target="vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.allocate_new_blocks",
            window=VLLM,
            why="vLLM asks its block pool for a number of blocks and does not say for whom, so a prompt that is "
            "prefilled in chunks gets a run per chunk at best. The replacement tells a queue that hands out runs "
            "(block_allocation) the request's last block; for every other queue nothing changes.",
            upstream="https://github.com/vllm-project/vllm/issues/55434",
            remove_when="BlockPool.get_new_blocks is told which block the new ones follow.",
            expects=("self", "request_id", "num_tokens", "num_tokens_main_model"),
            replace=_with_last_block,
            obsolete=_pool_takes_a_hint,
        ),
        _row_alignment(ROW_ALIGNMENT[0], "kv_cache_utils", VLLM_UNTIL_032),
        _row_alignment(ROW_ALIGNMENT[1], "kv_cache_planning", VLLM_SINCE_033),
    ),
)
