"""Configurations that the CPU's sparse attention cannot serve rightly, refused before anything is loaded."""

from __future__ import annotations

from typing import Any

from vllm_cpu_dsa.rows import row_format

__all__ = ["check"]


def check(vllm_config: Any) -> None:
    """Raise `Unsupported` for the first setting of ``vllm_config`` that cannot work."""
    row_format(vllm_config.cache_config.cache_dtype)
