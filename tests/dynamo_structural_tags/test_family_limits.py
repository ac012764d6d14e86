"""What a family's notation cannot write: refused, left out or relaxed with a message, never written wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from glm_turns import tool

from dynamo_structural_tags.ebnf.markers import Markers
from dynamo_structural_tags.ebnf.text import json_literal
from dynamo_structural_tags.families import FAMILIES
from dynamo_structural_tags.grammar import BuiltTool, build
from dynamo_structural_tags.ladder import Level
from dynamo_structural_tags.schema import Verdict
from dynamo_structural_tags.settings import Reader
from dynamo_structural_tags.tags import family_for


def _made(family: str, properties: dict[str, Any], **more: Any) -> BuiltTool:
    (made,) = build([tool("t", properties, additionalProperties=False, **more)], family=family).tools
    return made


#: What Dynamo's parsers of the XML families (v1) and of GLM take for what it is not, by the verdict of its schema.
DYNAMO = [
    ("qwen3_coder-dynamo-v1", {"type": "string"}, {"type"}),
    ("qwen3_coder-dynamo-v1", {"type": "string", "pattern": "^[0-9]+$"}, set()),
    ("qwen3_coder-dynamo-v1", {"type": "string", "pattern": "^[a-z]+$"}, {"type"}),
    ("qwen3_coder-dynamo-v1", {"type": "string", "pattern": "^.{1,3}$"}, {"pattern"}),
    ("qwen3_coder-dynamo-v1", {"type": "string", "enum": ["fast", "slow"]}, set()),
    ("qwen3_coder-dynamo-v1", {"type": "integer"}, set()),
    ("qwen3_coder-dynamo-v1", {"enum": ["a", 1]}, set()),
    ("qwen3_coder-dynamo-v1", {"enum": [1, 2]}, {"enum", "type"}),
    ("qwen3_coder-dynamo-v1", {"const": 5}, {"enum", "const", "type"}),
    ("qwen3_coder-dynamo-v1", {"type": ["integer", "null"]}, {"type"}),
    ("qwen3_coder-dynamo-v1", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, set()),
    ("qwen3_coder-dynamo-v1", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf", "type"}),
    ("qwen3_coder-dynamo-v1", {"allOf": [{"type": "integer"}]}, {"type"}),
    ("minimax_m2-dynamo-v1", {"type": "array", "items": {"type": "string"}}, set()),
    ("deepseek_v4-dynamo-v1", {"type": "string"}, {"type"}),
    ("deepseek_v4-dynamo-v1", {"const": 5}, set()),
    ("gemma4-dynamo-v1", {"const": 5}, set()),
    ("gemma4-dynamo-v1", {"type": "object", "additionalProperties": {"type": "integer"}}, set()),
    ("glm-dynamo-v1", {"type": "string"}, set()),
    ("glm-dynamo-v1", {"type": ["integer", "null"]}, set()),
    ("glm-dynamo-v1", {"type": "integer", "nullable": True}, {"nullable"}),
    ("glm-dynamo-v2", {"const": 5}, {"enum", "const"}),
    ("glm-dynamo-v1", {"enum": ["a", True, None]}, {"enum"}),
    ("glm-dynamo-v1", {"enum": ["a", [1]]}, set()),
    ("glm-dynamo-v1", {"type": "int64"}, {"type"}),
    ("glm-dynamo-v1", {"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "integer"}]}, {"type"}),
    ("minimax_m3", {"type": "int64"}, {"type"}),
    ("minimax_m3", {"enum": ["a", 1]}, {"type", "enum"}),
]


@pytest.mark.parametrize(("family", "schema", "keywords"), DYNAMO)
def test_what_dynamos_parsers_misread_is_named_by_keyword(family: str, schema: Any, keywords: set[str]) -> None:
    made = _made(family, {"a": schema}, required=["a"])

    relaxed = {message.keyword for message in made.messages if message.verdict is not Verdict.EXACT}
    assert (made.level, relaxed) == (Level.FULL, keywords), made.messages


@pytest.mark.parametrize(
    ("family", "key"), [("gemma4-dynamo-v1", "é"), ("gemma4", "a:b"), ("minimax_m3", "a b"), ("glm-dynamo-v1", " a")]
)
def test_an_argument_that_cannot_be_written_is_left_out_where_it_is_optional(family: str, key: str) -> None:
    made = _made(family, {key: {"type": "integer"}, "b": {"type": "integer"}}, required=["b"])

    assert (made.level, made.verdict) == (Level.FULL, Verdict.RELAXED)
    assert [message.path for message in made.messages] == [f"#/properties/{key}"]


@pytest.mark.parametrize("word", ["<a<b>", "[[x]"])
def test_a_marker_with_its_first_character_a_second_time_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="needs its only"):
        Markers([word])


@pytest.mark.parametrize("text", ["```", "a````b", "`````", "``"])
def test_a_marker_of_one_character_is_nowhere_in_a_listed_value_and_comes_back(text: str) -> None:
    written = json_literal(json.dumps([text]), Markers(["```"]))

    assert "```" not in written
    assert json.loads(written) == [text]


@pytest.mark.parametrize(
    ("family", "key", "reason"),
    [
        ("gemma4", "a:b", "cannot be written without quotes"),
        ("gemma4-dynamo-v1", "é", "cannot be written without quotes"),
        ("qwen3_coder-dynamo-v1", " a", "cannot be written"),
        ("gemma4", " a", "cannot be written without quotes"),
        ("minimax_m3", "a b", "no element can have this name"),
        ("pythonic", "class", "cannot be written"),
        ("pythonic", "a-b", "cannot be written"),
        ("deepseek_v32", 'a"b', "cannot be written"),
    ],
)
def test_a_required_key_that_cannot_be_written_lets_the_tool_fall_and_says_why(
    family: str, key: str, reason: str
) -> None:
    made = _made(family, {key: {"type": "string"}}, required=[key])

    assert made.level is Level.NAMES
    assert [level for level, _ in made.falls] == [Level.FULL, Level.TYPES]
    assert all(reason in why for _, why in made.falls), made.falls


@pytest.mark.parametrize(
    ("family", "value"),
    [("gemma4", 'a<|"|>b'), ("minimax_m3", "a&lt;b"), ("deepseek_v32", "a</｜DSML｜b")],
)
def test_a_listed_value_with_a_marker_in_it_is_not_written(family: str, value: str) -> None:
    made = _made(family, {"a": {"enum": [value]}}, required=["a"])

    assert made.level is Level.TYPES
    assert made.verdict is Verdict.RELAXED


@pytest.mark.parametrize(
    ("family", "schema", "verdict"),
    [
        ("gemma4", {"type": "integer"}, Verdict.EXACT),
        ("gemma4", {"type": "array", "items": {"type": "number"}}, Verdict.EXACT),
        ("gemma4", {"type": "object", "properties": {"n": {"type": "integer"}}}, Verdict.EXACT),
        ("gemma4", {"const": 5}, Verdict.RELAXED),
        ("gemma4", {"type": "object", "additionalProperties": {"type": "integer"}}, Verdict.RELAXED),
        ("gemma4", {"type": "array", "prefixItems": [{"type": "integer"}]}, Verdict.RELAXED),
        ("minimax_m3", {"type": "boolean"}, Verdict.EXACT),
        ("minimax_m3", {"type": ["string", "null"]}, Verdict.EXACT),
        ("minimax_m3", {"const": 5}, Verdict.RELAXED),
        ("minimax_m3", {"type": ["string", "integer"], "maximum": 3}, Verdict.RELAXED),
        ("mistral_v11", {"type": "array", "items": {"const": 5}}, Verdict.RELAXED),
        ("mistral", {"type": "array", "items": {"const": 5}, "minItems": 0}, Verdict.EXACT),
        ("deepseek_v4", {"const": 5}, Verdict.RELAXED),
    ],
)
def test_types_that_a_reader_does_not_give_back_are_relaxed(family: str, schema: Any, verdict: Verdict) -> None:
    made = _made(family, {"a": schema}, required=["a"])

    assert (made.level, made.verdict) == (Level.FULL, verdict), made.messages


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("pythonic", "a-b"),
        ("pythonic", "a.b"),
        ("pythonic", "class"),
        ("mistral_v11", "a{b"),
        ("gemma4", "a:b"),
        ("deepseek_v4", 'a"b'),
    ],
)
def test_a_tool_whose_name_the_notation_has_no_place_for_is_left_out(family: str, name: str) -> None:
    assert [made.name for made in build([tool(name, {}), tool("run", {})], family=family).tools] == ["run"]


def test_the_family_of_a_tag_follows_the_reader() -> None:
    assert family_for("glm", Reader.OURS) == "glm"
    assert family_for("glm", Reader.VLLM) == "glm-vllm"
    assert family_for("glm", Reader.DYNAMO_V1) == "glm-dynamo-v1"
    assert family_for("qwen3_coder", Reader.DYNAMO_V1) == "qwen3_coder-dynamo-v1"
    assert family_for("qwen3_coder", Reader.DYNAMO_V2) == "qwen3_coder-dynamo-v2"
    assert family_for("qwen3_coder", Reader.VLLM) == "qwen3_coder"
    assert family_for("hermes", Reader.DYNAMO_V1) == "hermes"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_names_its_source_and_what_begins_a_call(family: str) -> None:
    made = FAMILIES[family]

    assert made.name == family
    assert made.source
    assert made.trigger
    assert made.trigger not in made.text_markers


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [["integer", "string"], "number", "string"])
def test_a_listed_text_of_400_digits_is_a_text(family: str, types: Any) -> None:
    assert _made(family, {"a": {"enum": ["-" + "9" * 400, "9" * 400], "type": types}, "b": {}}).name == "t"
