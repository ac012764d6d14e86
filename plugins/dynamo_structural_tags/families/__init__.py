"""Tool formats by name. A new one is a file here and a line in `FAMILIES`.

Where a reader wants less, or other texts than the model's own form has, there is one more with its name behind:
``glm-dynamo-v1``.
"""

from __future__ import annotations

from .deepseek_v3 import DEEPSEEK_V3, DEEPSEEK_V3_DYNAMO_V1
from .deepseek_v4 import DEEPSEEK_V4, DEEPSEEK_V4_DYNAMO_V1
from .deepseek_v31 import DEEPSEEK_V31
from .deepseek_v32 import DEEPSEEK_V32, DEEPSEEK_V32_DYNAMO_V1
from .deepseek_v41 import DEEPSEEK_V41
from .family import Call, Family, StockForm
from .gemma4 import GEMMA4
from .gemma4_dynamo import GEMMA4_DYNAMO_V1
from .glm import GLM, GLM45
from .glm_readers import GLM_DYNAMO_V1, GLM_DYNAMO_V2, GLM_VLLM
from .hermes import HERMES
from .jamba import JAMBA
from .kimi_k2 import KIMI_K2
from .kimi_k25 import KIMI_K25
from .llama3_json import LLAMA3_JSON
from .minimax_m2 import MINIMAX_M2, MINIMAX_M2_DYNAMO_V1
from .minimax_m3 import MINIMAX_M3
from .mistral import MISTRAL
from .mistral_v11 import MISTRAL_V11
from .nemotron_deci import NEMOTRON_DECI
from .phi4 import PHI4
from .pythonic import PYTHONIC
from .qwen3_coder import QWEN3_CODER, QWEN3_CODER_DYNAMO_V1, QWEN3_CODER_DYNAMO_V2

__all__ = ["FAMILIES", "Call", "Family", "StockForm", "family_named"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GLM, GLM45, GLM_DYNAMO_V1, GLM_DYNAMO_V2, GLM_VLLM),
        *(DEEPSEEK_V3, DEEPSEEK_V3_DYNAMO_V1, DEEPSEEK_V31, DEEPSEEK_V32, DEEPSEEK_V32_DYNAMO_V1),
        *(DEEPSEEK_V4, DEEPSEEK_V4_DYNAMO_V1, DEEPSEEK_V41, GEMMA4, GEMMA4_DYNAMO_V1, HERMES, JAMBA),
        *(KIMI_K2, KIMI_K25, LLAMA3_JSON, MINIMAX_M2, MINIMAX_M2_DYNAMO_V1, MINIMAX_M3, MISTRAL, MISTRAL_V11),
        *(NEMOTRON_DECI, PHI4, PYTHONIC, QWEN3_CODER, QWEN3_CODER_DYNAMO_V1, QWEN3_CODER_DYNAMO_V2),
    )
}


def family_named(name: str) -> Family:
    """The family of a name; ValueError with the known ones if there is none."""
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"family={name!r}: no tool format of this name; known are {known}: choose the model's one")
    return FAMILIES[name]
