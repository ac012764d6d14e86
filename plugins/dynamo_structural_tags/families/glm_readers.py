"""GLM-4.7 and 5.x for other readers than this plugin's: what they take for a marker may not be in a value.

Dynamo's v1 parser, and vLLM's where an answer is not streamed, cut ``<think>`` and ``</think>`` out of values and end
a call at any ``</tool_call>``. Dynamo's v2 parser loses calls with ``</tool_call>`` before ``<tool_call>`` in a value.
Both of Dynamo's take blanks off the ends of keys, and a value's type from the schema as in `glm_types`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ebnf.rules import Rules
from ..ebnf.tagged import TaggedArguments
from ..glm_format import CALL, CALL_END, THINK, THINK_END, VALUE, VALUE_END
from .dynamo_text import stripped
from .family import Call
from .glm import GLM, GlmFamily
from .glm_types import note_misreadings

__all__ = ["GLM_DYNAMO_V1", "GLM_DYNAMO_V2", "GLM_VLLM"]

_ALL = (VALUE_END, VALUE, CALL_END, THINK, THINK_END)


class _DynamoArguments(TaggedArguments):
    def _unspeakable(self, name: str) -> bool:
        return stripped(name) != name or super()._unspeakable(name)


@dataclass(frozen=True, slots=True)
class _DynamoGlm(GlmFamily):
    arguments: type[TaggedArguments] = _DynamoArguments

    def call(self, rules: Rules, call: Call) -> str:
        note_misreadings(call.shapes, call.parameters)
        return GlmFamily.call(self, rules, call)


def _for(name: str, reader: str, markers: tuple[str, ...], family: type[GlmFamily] = _DynamoGlm) -> GlmFamily:
    return family(name, f"{GLM.source}; {reader}", CALL, GLM.text_markers, value_markers=markers)


GLM_DYNAMO_V1 = _for("glm-dynamo-v1", "read by Dynamo's v1 parser", _ALL)
GLM_DYNAMO_V2 = _for("glm-dynamo-v2", "read by Dynamo's v2 parser", (VALUE_END, VALUE, CALL_END))
GLM_VLLM = _for("glm-vllm", "read by vLLM's parser", _ALL, GlmFamily)
