"""DeepSeek-V4.1: the section of DeepSeek-V4 under another name, and a blank in every element."""

from __future__ import annotations

from dataclasses import replace

from .deepseek_v32 import DEEPSEEK_V32

__all__ = ["DEEPSEEK_V41"]

_ELEMENTS = ("<｜DSML｜ invoke", "<｜DSML｜ parameter", "</｜DSML｜ invoke", "</｜DSML｜ parameter")

DEEPSEEK_V41 = replace(
    DEEPSEEK_V32,
    name="deepseek_v41",
    source="encoding of DeepSeek-V4.1, which comes with the model in place of a chat template",
    trigger="<｜DSML｜ calls>",
    text_markers=("</｜DSML｜ calls>", *_ELEMENTS, "<think>", "</think>"),
    gap=" ",
    stock=None,
)
