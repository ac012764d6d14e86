"""What became of the tool calls in a captured answer: entry point ``dynamo_structural_tags`` of the group
``rl_capture.outcomes``."""

from __future__ import annotations

import json
import re
from typing import Any

from dynamo_structural_tags.glm_format import THINK, THINK_END
from dynamo_structural_tags.parser import parse_output

__all__ = ["outcomes"]

#: How GLM-4.5 and later begin every prompt.
_BEGIN = "[gMASK]<sop>"
#: The template writes one JSON object a line.
_TOOLS = re.compile(r"<tools>\n(.*?)\n?</tools>", re.DOTALL)
#: The tokens at which the engine stops; they are part of the answer's ids.
_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")


def outcomes(prompt: str, output: str, finish_reason: str) -> list[dict[str, Any]] | None:
    """Name and outcome (`OUTCOMES`) of each call in what the model wrote, in its order; cut ones come last.

    prompt, output: text with all markers. finish_reason: the engine's. None if the prompt is not GLM's. The tools are
    those that the prompt offers; its tool choice is not known, and counts as auto.
    """
    if not prompt.startswith(_BEGIN):
        return None
    for end in _ENDS:
        output = output.removesuffix(end)
    found = parse_output(output, _offered(prompt), finish_reason=finish_reason, thinking=_inside_a_thought(prompt))
    whole = [{"name": name, "outcome": outcome} for (name, _), outcome in zip(found.calls, found.outcomes, strict=True)]
    return whole + [{"name": name, "outcome": "truncated"} for name, _ in found.truncated]


def _offered(prompt: str) -> list[Any]:
    """The tools of the prompt's first part; a line that is no JSON is passed over."""
    system = prompt.partition("<|user|>")[0]
    if (block := _TOOLS.search(system)) is None:
        return []
    tools = []
    for line in block[1].splitlines():
        try:
            tools.append(json.loads(line))
        except ValueError:
            continue
    return tools


def _inside_a_thought(prompt: str) -> bool:
    return prompt.rfind(THINK) > prompt.rfind(THINK_END)
