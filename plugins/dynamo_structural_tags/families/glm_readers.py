"""GLM-4.7 and 5.x for other readers than this plugin's: what they take for a marker may not be in a value.

Dynamo's v1 parser, and vLLM's where an answer is not streamed, cut ``<think>`` and ``</think>`` out of values and end
a call at any ``</tool_call>``. Dynamo's v2 parser loses calls with ``</tool_call>`` before ``<tool_call>`` in a value.
"""

from __future__ import annotations

from ..glm_format import CALL, CALL_END, THINK, THINK_END, VALUE, VALUE_END
from .glm import GLM, GlmFamily

__all__ = ["GLM_DYNAMO_V1", "GLM_DYNAMO_V2", "GLM_VLLM"]

_ALL = (VALUE_END, VALUE, CALL_END, THINK, THINK_END)


def _for(name: str, reader: str, markers: tuple[str, ...]) -> GlmFamily:
    return GlmFamily(name, f"{GLM.source}; {reader}", CALL, GLM.text_markers, value_markers=markers)


GLM_DYNAMO_V1 = _for("glm-dynamo-v1", "read by Dynamo's v1 parser", _ALL)
GLM_DYNAMO_V2 = _for("glm-dynamo-v2", "read by Dynamo's v2 parser", (VALUE_END, VALUE, CALL_END))
GLM_VLLM = _for("glm-vllm", "read by vLLM's parser", _ALL)
