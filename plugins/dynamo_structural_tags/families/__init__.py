"""Tool formats by name. A new one is a file here and a line in `FAMILIES`."""

from __future__ import annotations

from .deepseek_v3 import DEEPSEEK_V3
from .deepseek_v31 import DEEPSEEK_V31
from .family import Call, Family
from .glm import GLM, GLM45
from .glm_readers import GLM_DYNAMO_V1, GLM_DYNAMO_V2, GLM_VLLM
from .hermes import HERMES
from .kimi_k2 import KIMI_K2
from .minimax_m2 import MINIMAX_M2
from .qwen3_coder import QWEN3_CODER

__all__ = ["FAMILIES", "Call", "Family", "family_named"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GLM, GLM45, GLM_DYNAMO_V1, GLM_DYNAMO_V2, GLM_VLLM),
        *(DEEPSEEK_V3, DEEPSEEK_V31, HERMES, KIMI_K2, MINIMAX_M2, QWEN3_CODER),
    )
}


def family_named(name: str) -> Family:
    """The family of a name; ValueError with the known ones if there is none."""
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"family={name!r}: no tool format of this name; known are {known}: choose the model's one")
    return FAMILIES[name]
