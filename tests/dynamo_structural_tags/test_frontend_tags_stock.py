"""The frontend's tags, tried with the installed xgrammar: they allow what the request allows, and no more."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dynamo.frontend
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


@pytest.mark.parametrize("front", ["ours", "stock"])
@pytest.mark.parametrize(
    "options",
    [
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"tools": [], "tool_choice": "required"},
    ],
    ids=["undeclared", "without tools", "no tool"],
)
def test_a_forced_call_without_a_tool_is_a_400_as_in_dynamo(
    front: str, options: dict[str, Any], fronts: dict[str, Front]
) -> None:
    assert fronts[front].post(**options).status_code == 400


def test_a_forced_call_of_a_name_that_cannot_be_written_is_a_400(fronts: dict[str, Front]) -> None:
    tools = [{"type": "function", "function": {"name": "a</arg_key>"}}]

    answer = fronts["ours"].post(tools=tools, tool_choice="required")

    assert answer.status_code == 400


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


def test_no_engine_waits_for_the_end_of_a_reasoning_that_the_tag_holds(fronts: dict[str, Front]) -> None:
    """A worker with vLLM's --reasoning-parser would let the grammar begin behind it; Dynamo hands this on to vLLM."""
    wishes: dict[str, dict[str, Any]] = {"tools": {"tools": TOOLS}, "answer": {"response_format": SCHEMA}, "text": {}}
    told = {}
    for name, options in wishes.items():
        fronts["ours"].post(**options)
        told[name] = _handed_to_vllm(fronts["ours"].seen())[0]

    assert told == {"tools": True, "answer": True, "text": None}


def _handed_to_vllm(request: dict[str, Any]) -> Any:
    """What Dynamo's worker tells vLLM of the reasoning, by its own function; the module would load all of vLLM."""
    source = Path(dynamo.frontend.__file__).parents[1] / "vllm" / "handlers.py"
    name = "_request_reasoning_metadata"
    body = ast.parse(source.read_text("utf-8")).body
    made: dict[str, Any] = {"Any": Any, "Mapping": Mapping}
    found: list[ast.stmt] = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(compile(ast.Module(found, []), str(source), "exec"), made)
    return made[name](request)


def test_a_forced_call_that_no_tool_can_be_called_with_is_refused_by_name() -> None:
    from dynamo_structural_tags.settings import Settings
    from dynamo_structural_tags.tags import Maker

    tools = [{"type": "function", "function": {"name": "a</arg_key>"}}]

    with pytest.raises(RefusedRequest, match="its tools are 'a</arg_key>'"):
        Guidance(Maker(Settings())).options({"tools": tools, "tool_choice": "required"}, thinking=True)


def test_a_forced_call_and_a_constraint_exclude_each_other() -> None:
    with pytest.raises(RefusedRequest, match="guided_regex"):
        Guidance(None).options({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, thinking=True)
