"""What the worker's hook reads in the tags that vLLM takes from xgrammar for other families than GLM's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from glm_turns import tool
from xgrammar import get_model_structural_tag

from dynamo_structural_tags.stock_tags import read_tag

RUN = tool("run", {"cmd": {"type": "string"}}, required=["cmd"], additionalProperties=False)
NOARGS = tool("noargs", {}, additionalProperties=False)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("kimi", "kimi_k2"),
        ("deepseek_r1", "deepseek_v3"),
        ("deepseek_v3_1", "deepseek_v31"),
        ("deepseek_v3_2", "deepseek_v32"),
        ("deepseek_v4", "deepseek_v4"),
        ("qwen_3", "hermes"),
        ("qwen_3_coder", "qwen3_coder"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
def test_tags_of_xgrammar_that_vllm_uses_tell_family_tools_and_choice(model: str, family: str, choice: str) -> None:
    wanted: Any = {"type": "function", "function": {"name": "run"}} if choice == "named" else choice
    tag = get_model_structural_tag(model, tools=[RUN, NOARGS], tool_choice=wanted, reasoning="disabled")

    found = read_tag(tag.model_dump(mode="json"))

    assert found is not None
    assert (found.family, found.tool_choice, found.reasoning) == (family, wanted, None)
    assert [one["function"]["name"] for one in found.tools] == (["run"] if choice == "named" else ["run", "noargs"])
    assert found.tools[0]["function"]["parameters"] == RUN["function"]["parameters"]
