"""DeepSeek-V3.1: the section of DeepSeek-V3 without types and fences, nothing between two calls."""

from __future__ import annotations

from .deepseek_v3 import CALL, CALL_END, DEEPSEEK_V3, SECTION, SECTION_END, SEPARATOR, DeepSeekFamily
from .family import StockForm

__all__ = ["DEEPSEEK_V31"]

DEEPSEEK_V31 = DeepSeekFamily(
    "deepseek_v31",
    "chat template of DeepSeek-V3.1",
    SECTION,
    DEEPSEEK_V3.text_markers,
    name_markers=("\n",),
    fence=(SEPARATOR, ""),
    stock=StockForm(CALL, SEPARATOR, CALL_END, section=(SECTION, SECTION_END)),
)
