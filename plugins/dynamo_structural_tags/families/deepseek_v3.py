"""DeepSeek-V3 and R1: all calls in one section, the arguments of each in a fenced block of JSON.

The reader takes the arguments from one line (vLLM 0.31), and nothing from behind the section. Dynamo's v1 parser ends
the block at the first fence, also inside of a string.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ebnf.json_values import ONE_LINE
from ..ebnf.rules import Rules, quote
from .family import Call, Family, StockForm
from .json_calls import json_arguments

__all__ = [
    "CALL",
    "CALL_END",
    "DEEPSEEK_V3",
    "DEEPSEEK_V3_DYNAMO_V1",
    "MARKERS",
    "SECTION",
    "SECTION_END",
    "SEPARATOR",
    "DeepSeekFamily",
]

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
MARKERS = (SECTION, SECTION_END, CALL, CALL_END, SEPARATOR)


@dataclass(frozen=True, slots=True)
class DeepSeekFamily(Family):
    """A section of calls.

    before: what stands before a name. fence: around the arguments. gap: between two calls.
    markers: what no string contains but escaped.
    """

    before: str = ""
    fence: tuple[str, str] = ("", "")
    gap: str = ""
    markers: tuple[str, ...] = MARKERS

    def call(self, rules: Rules, call: Call) -> str:
        begin, end = CALL + self.before + call.name + self.fence[0], self.fence[1] + CALL_END
        return f"{quote(begin)} {json_arguments(rules, call, self.markers, ONE_LINE)} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        more = f"({quote(self.gap)} {call})*" if parallel else ""
        return f"{call} {more} {quote(SECTION_END)}", False


DEEPSEEK_V3 = DeepSeekFamily(
    "deepseek_v3",
    "chat templates of DeepSeek-V3 and R1",
    SECTION,
    (*MARKERS[1:], "<think>", "</think>"),
    name_markers=("\n",),
    before="function" + SEPARATOR,
    fence=("\n```json\n", "\n```"),
    gap="\n",
    stock=StockForm(
        f"{CALL}function{SEPARATOR}",
        "\n```json\n",
        f"\n```{CALL_END}",
        section=(SECTION, SECTION_END),
        separator="\n",
    ),
)
DEEPSEEK_V3_DYNAMO_V1 = replace(DEEPSEEK_V3, name="deepseek_v3-dynamo-v1", stock=None, markers=(*MARKERS, "```"))
