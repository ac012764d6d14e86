"""Tags of ``vllm serve``, made from the request's own tools: for the parser glm47_safe, and for vLLM's own glm47."""

from __future__ import annotations

import json
import logging
from typing import Any

from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.structural_tag_registry import register_vllm_structural_tag
from xgrammar import StructuralTag, get_model_structural_tag

from dynamo_structural_tags import metrics
from dynamo_structural_tags.settings import Mode, Reader
from dynamo_structural_tags.vllm_request import choice_of, format_of, tools_of
from dynamo_structural_tags.worker import current, reader_of

__all__ = ["makes_tags", "register_builder", "with_tag"]

_log = logging.getLogger(__name__)


class _OwnTag(StructuralTag):
    """A tag with the mark that `stock_tags.is_own` finds, also when vLLM writes it out."""

    dynamo_structural_tags: int = 1


def makes_tags() -> bool:
    """Whether requests get tags of this plugin instead of vLLM's."""
    hook = current()
    return hook is not None and hook.settings.mode is Mode.ENFORCE


def with_tag(request: Any) -> Any:
    """The request with a tag for its tools in place of what it asks its output to be.

    It stays as it is if no call is wanted, if the format it asks for has no schema, or if nothing compiles. The tag
    does not know yet whether the output begins inside of the reasoning, see `vllm_begin`.

    Raises ValueError, which vLLM answers with 400, for a forced call that no tool can be called with.
    """
    hook, tools, choice, schema = current(), tools_of(request), choice_of(request), format_of(request)
    if hook is None or not tools or choice == "none" or schema is False:
        return request
    text = hook.maker.make(
        tools,
        tool_choice=choice,
        parallel=request.parallel_tool_calls is not False,
        response_schema=schema,
        reader=Reader.OURS,
    )
    if text is None:
        metrics.tag("failed")
        return request
    metrics.tag("built")
    request.structured_outputs = StructuredOutputsParams(structural_tag=text)
    for name in ("response_format", "text"):  # of chat, and of responses
        if getattr(request, name, None) is not None:
            setattr(request, name, None)
    return request


def register_builder() -> None:
    """Make vLLM's own parser glm47 use this plugin's tags, through vLLM's registry of builders."""
    register_vllm_structural_tag("glm_4_7")(_build)


def _build(tools: list[Any], builtin_tools: list[Any], choice: str, reasoning: bool, token_suffix: str = "") -> Any:
    """A builder as vLLM's registry has them; choice: "auto", "required", or "forced" to call the only tool."""
    hook = current()
    dumped: list[Any] = [{"type": "function", "function": _dumped(tool.function)} for tool in tools]
    wanted: Any = choice
    if choice == "forced":
        wanted = {"type": "function", "function": {"name": dumped[0]["function"]["name"]}}
    text = None
    if hook is not None and dumped:
        text = hook.maker.make(dumped, tool_choice=wanted, reasoning=reasoning, reader=reader_of(hook.settings))
    if text is None:
        metrics.tag("failed")
        return get_model_structural_tag("glm_4_7", tools=dumped, tool_choice=wanted, reasoning=reasoning)
    metrics.tag("built")
    return _OwnTag.model_validate(json.loads(text))


def _dumped(function: Any) -> dict[str, Any]:
    fields = {"name": function.name, "parameters": function.parameters, "strict": function.strict}
    return {key: value for key, value in fields.items() if value is not None}
