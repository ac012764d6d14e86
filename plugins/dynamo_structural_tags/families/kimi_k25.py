"""Kimi K2.5: what Kimi K2 writes; its template frames calls in the same way."""

from __future__ import annotations

from dataclasses import replace

from .kimi_k2 import KIMI_K2

__all__ = ["KIMI_K25"]

KIMI_K25 = replace(KIMI_K2, name="kimi_k25", source="chat template of Kimi K2.5", stock=None)
