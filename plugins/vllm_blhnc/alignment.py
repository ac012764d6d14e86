"""Block rows a whole number of larger kernel pages apart: the setting ``row_alignment_tokens``.

TRTLLM-gen reads a block-outermost cache in the largest pages that divide the block stride. vLLM aligns the stride
to 32 tokens, which makes pages of 32 out of blocks of 64. vLLM's own planner does the rest once the specifications
of the MLA caches ask for more, so they are changed where the engine core groups them, before it sizes the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_blhnc.checks import LayoutError
from vllm_blhnc.plan import BlockRow, block_row
from vllm_blhnc.settings import KEY
from vllm_blhnc.stock import release

__all__ = ["ask", "check_row", "with_aligned_rows"]

_log = logging.getLogger("vllm.vllm_blhnc")
_SETTING = f"kv_connector_extra_config.{KEY}.row_alignment_tokens"

#: The cache configuration of the engine that asked last, and for how many tokens.
_asked: tuple[Any, int] | None = None


def ask(cache_config: Any, tokens: int | None) -> None:
    """Have the rows of this engine's cache planned as asked, and those of no other engine in this process.

    tokens: rows of an MLA cache, one a token; None leaves them as vLLM plans them.
    """
    global _asked
    if tokens is None:
        _asked = None
        return
    from vllm_blhnc.patches import REGISTER, ROW_ALIGNMENT

    _asked = (cache_config, tokens)
    REGISTER.apply(ROW_ALIGNMENT)


def with_aligned_rows(original: Any) -> Any:
    """Stock's ``get_kv_cache_groups``, given specifications that ask for the alignment."""

    @functools.wraps(original)
    def get_kv_cache_groups(vllm_config: Any, kv_cache_spec: dict[str, Any]) -> Any:
        cache_config = vllm_config.cache_config
        if _asked and _asked[0] is cache_config and cache_config.kv_cache_layout == "BLHNC":
            _align(kv_cache_spec, _asked[1])
        return original(vllm_config, kv_cache_spec)

    return get_kv_cache_groups


def check_row(row: BlockRow, specs: Iterable[Any], tokens: int | None) -> None:
    """Raise `LayoutError` unless the row is a whole number of `tokens` rows of every MLA cache.

    row: as registered. specs: the caches' specifications.
    """
    for nbytes in {tokens * spec.state_content_size_bytes for spec in specs if _is_mla(spec)} if tokens else ():
        if row.nbytes % nbytes:
            raise LayoutError(
                f"{_SETTING}={tokens} asks for block rows of a multiple of {nbytes} bytes, but this engine has rows "
                f"of {row.nbytes}: with VLLM_KV_CACHE_LAYOUT set vLLM plans the cache before it asks the connector. "
                "Unset VLLM_KV_CACHE_LAYOUT, or leave row_alignment_tokens out."
            )


def _align(specs: dict[str, Any], tokens: int) -> None:
    before = _row(specs)
    for name, spec in specs.items():
        if not _is_mla(spec):
            continue
        if spec.block_size % tokens:
            raise LayoutError(
                f"{_SETTING}={tokens} does not divide block_size={spec.block_size}, and kernels page a block into "
                f"equal parts. Set it to a divisor such as {math.gcd(tokens, spec.block_size)} or {spec.block_size}, "
                "or leave it out."
            )
        alignment = math.lcm(release().alignment(spec), tokens * spec.state_content_size_bytes)
        specs[name] = dataclasses.replace(spec, block_stride_alignment=alignment)
    after = _row(specs)
    # vLLM groups the caches more than once; they are aligned from the second time on.
    if after.alignment != before.alignment:
        more = after.nbytes - before.nbytes
        _log.info(
            "vllm_blhnc: row_alignment_tokens=%d: block rows of %d bytes instead of %d, %d bytes (%.2f %%) more "
            "memory and traffic a block",
            tokens,
            after.nbytes,
            before.nbytes,
            more,
            100 * more / before.nbytes,
        )


def _row(specs: Mapping[str, Any]) -> BlockRow:
    return block_row(
        {name: spec.page_size_bytes for name, spec in specs.items()},
        [release().alignment(spec) for spec in specs.values()],
    )


def _is_mla(spec: Any) -> bool:
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SparseCacheRole

    return isinstance(spec, MLAAttentionSpec) and spec.cache_role is not SparseCacheRole.INDEXER
