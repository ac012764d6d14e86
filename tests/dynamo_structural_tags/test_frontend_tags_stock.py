"""The frontend's tags, tried with the installed xgrammar: they allow what the request allows, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar
from scripted_stack import OURS, Front, started

from dynamo_structural_tags.frontend.guidance import Guidance
from dynamo_structural_tags.frontend.refusal import RefusedRequest

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": kind}}}}
    for name, kind in (("text", {"type": "string"}), ("list", {"type": "array"}))
]
THOUGHT = "Hm.</think>"
TEXT = "<tool_call>text<arg_key>a</arg_key><arg_value>x < y</arg_value></tool_call>"
LIST = '<tool_call>list<arg_key>a</arg_key><arg_value>[1, "b"]</arg_value></tool_call>'
OTHER = "<tool_call>other</tool_call>"
NAMED = {"type": "function", "function": {"name": "list"}}
ANSWER = {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}}


@pytest.mark.parametrize(
    ("options", "allowed", "forbidden"),
    [
        ({}, ["Hello.", TEXT, LIST + TEXT, "Text first. " + TEXT], [OTHER, TEXT[:-12]]),
        ({"tool_choice": "required"}, [TEXT, LIST + TEXT], ["Hello.", OTHER]),
        ({"tool_choice": NAMED}, [LIST], ["Hello.", TEXT]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [TEXT, LIST], [LIST + TEXT]),
        ({"response_format": SCHEMA}, ['{"k": 1}', TEXT], ["Hello.", '{"j": 1}']),
    ],
    ids=["auto", "required", "named", "single", "format"],
)
def test_tags_allow_what_the_request_allows(
    fronts: dict[str, Front], options: dict[str, Any], allowed: list[str], forbidden: list[str]
) -> None:
    from byte_matcher import _COMPILER, accepts

    for thinking in (True, False):
        body = {**options, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": thinking}}
        assert fronts["ours"].post(**body).status_code == 200
        tag = fronts["ours"].seen()["sampling_options"]["guided_decoding"]["structural_tag"]
        grammar: xgrammar.CompiledGrammar = _COMPILER.compile_structural_tag(json.dumps(tag))
        before = THOUGHT if thinking else ""

        assert {text: accepts(grammar, before + text) for text in allowed} == dict.fromkeys(allowed, True)
        assert {text: accepts(grammar, before + text) for text in forbidden} == dict.fromkeys(forbidden, False)


def test_a_response_format_leaves_the_reasoning_free(fronts: dict[str, Front]) -> None:
    """Stock constrains the output from its first token on, so the answer becomes the reasoning."""
    from byte_matcher import _COMPILER, accepts

    fronts["ours"].post(response_format=SCHEMA)
    tag = fronts["ours"].seen()["sampling_options"]["guided_decoding"]["structural_tag"]
    grammar = _COMPILER.compile_structural_tag(json.dumps(tag))
    texts = {f'{THOUGHT}{{"k": 1}}': True, f'{THOUGHT}{{"j": 1}}': False, '{"k": 1}': False, f"{THOUGHT}Hello.": False}

    assert {text: accepts(grammar, text) for text in texts} == texts


def test_without_calls_to_allow_there_is_no_tag(fronts: dict[str, Front]) -> None:
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        fronts["ours"].post(**options)

        assert not fronts["ours"].seen()["sampling_options"].get("guided_decoding")


def test_a_schema_that_xgrammar_cannot_compile_is_no_400(fronts: dict[str, Front]) -> None:
    """Stock answers 400 for the whole request, without a reason."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x).*$"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    assert fronts["ours"].post(tools=tools, tool_choice="required").status_code == 200


def test_a_worker_without_structural_tags_gets_none(served_model: Any, tmp_path: Any) -> None:
    with started(tmp_path, served_model, {"ours": OURS}, "--no-tags") as running:
        running["ours"].post(tools=TOOLS, tool_choice="required")

        assert not running["ours"].seen()["sampling_options"].get("guided_decoding")


def test_an_engine_that_waits_for_the_reasoning_gets_a_tag_without_it() -> None:
    asked: list[dict[str, Any]] = []

    class Maker:
        def make(self, tools: list[dict[str, Any]], **wish: Any) -> str:
            asked.append(wish)
            return "{}"

    for owns in (True, False):
        Guidance(Maker(), owns_reasoning=owns).options({"tools": TOOLS}, thinking=True)

    assert [wish["reasoning"] for wish in asked] == [False, True]


def test_a_forced_call_and_a_constraint_exclude_each_other() -> None:
    with pytest.raises(RefusedRequest, match="guided_regex"):
        Guidance(None).options({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, thinking=True)
