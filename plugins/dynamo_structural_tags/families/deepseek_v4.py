"""DeepSeek-V4: the section of DeepSeek-V3.2 under another name, which the reader knows in two more spellings."""

from __future__ import annotations

from dataclasses import replace

from .deepseek_v32 import DEEPSEEK_V32, stock_form

__all__ = ["DEEPSEEK_V4", "DEEPSEEK_V4_DYNAMO_V1"]

_OTHERS = ("<｜DSML｜toolcalls>", "<｜DSML｜tool>")

DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    name="deepseek_v4",
    source="encoding of DeepSeek-V4, which comes with the model in place of a chat template",
    trigger="<｜DSML｜tool_calls>",
    text_markers=("</｜DSML｜tool_calls>", *_OTHERS, *DEEPSEEK_V32.text_markers[1:]),
    stock=stock_form("tool_calls"),
)
DEEPSEEK_V4_DYNAMO_V1 = replace(DEEPSEEK_V4, name="deepseek_v4-dynamo-v1", stock=None, dynamo_v1=True)
