"""Hostile schemas: a bounded answer, never an exception; and what normalising them costs in schemas read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.schema import LIMITS, Verdict, normalise
from dynamo_structural_tags.schema.pattern_matcher import finds
from dynamo_structural_tags.schema.pattern_reader import PatternError, read_pattern
from dynamo_structural_tags.schema.reader import Reader


def _nested(depth: int, around: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


HOSTILE: dict[str, Any] = {
    "900 nested arrays": _nested(900, lambda s: {"type": "array", "items": s}),
    "2**900 branches": _nested(900, lambda s: {"anyOf": [s, s]}),
    "2**30 constraints": _nested(30, lambda s: {"allOf": [s, s]}),
    "10,000 keys": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}},
    "10,000 required keys": {"type": "object", "required": [f"p{i}" for i in range(10_000)]},
    "100,000 literals": {"enum": list(range(100_000))},
    "60**20 alternatives": {
        "allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(60)]} for i in range(20)]
    },
    "a ring of references": {
        "$ref": "#/$defs/a0",
        "$defs": {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 3000}"} for i in range(3000)},
    },
    "a chain of references": {
        "allOf": [{"$ref": "#/$defs/a0"}],
        "$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(3000)},
    },
    "10**9 nulls by reference": {
        "$ref": "#/$defs/l0",
        "$defs": {f"l{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/l{i + 1}"}] * 10} for i in range(9)},
    },
    "wide and deep": _nested(6, lambda s: {"type": "object", "properties": {f"k{i}": s for i in range(5)}}),
    "500 patterns of keys": {
        "type": "object",
        "patternProperties": {f"(a|b)*{i}": {"type": "integer"} for i in range(500)},
        "properties": {"ab" * 20: {}},
    },
    "patterns that backtrack": {"type": "string", "pattern": "((a+)+)+b", "enum": ["a" * 400]},
    "a pattern of 10**6 characters": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"},
    "3,000 groups": {"type": "string", "pattern": "(" * 3000},
    "counts of 10**9": {"type": "array", "minItems": 10**9, "items": {"minLength": 10**9, "maxLength": 10**12}},
    "everything of a wrong kind": {
        "type": {"a": 1}, "properties": [1], "required": "x", "items": 7, "enum": "a", "pattern": {}, "minimum": "1",
        "anyOf": {}, "allOf": [1, None], "$ref": [], "additionalProperties": "x", "minLength": -1, "maxLength": 1.5,
        "patternProperties": {"a": 5, "(": {}}, "propertyNames": 3, "not": 9, "format": 4, "nullable": "yes",
        "$schema": 1, "$defs": 3, "const": {"a": [None]}, "multipleOf": 0,
    },
    "numbers that are none": {"type": "number", "minimum": float("nan"), "const": float("inf")},
    "lone surrogates": {"type": "object", "properties": {"\ud800": {"const": "\udfff"}}, "required": ["\ud800"]},
    "a literal nested 800 deep": {"const": _nested(800, lambda s: [s])},
    "no schema": None,
    "text": "string",
    "a list": [{"type": "string"}],
    "a Python object": {"type": "object", "properties": {"a": {"enum": [object()]}}},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_gets_a_bounded_answer(name: str) -> None:
    found = normalise(HOSTILE[name])

    text = json.dumps(found.schema).encode("utf-8")  # sendable: no NaN in it either
    assert len(text) < 1_000_000
    assert json.dumps(found.schema, allow_nan=False)
    assert len(found.messages) <= LIMITS.messages + 1
    assert all(str(message).encode("utf-8") for message in found.messages)


def test_work_is_bounded_by_the_number_of_schemas_read() -> None:
    reader = Reader(HOSTILE["2**30 constraints"], False)
    reader.read(HOSTILE["2**30 constraints"], (), 0)

    assert reader._nodes <= 3 * LIMITS.nodes
    assert any(str(LIMITS.nodes) in message.text for message in reader.messages.values())


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){20}b", "(a?){50}a{50}b", "^(([a-z])+.)+[A-Z]"])
def test_a_pattern_that_makes_others_backtrack_is_matched_by_positions(pattern: str) -> None:
    assert finds(pattern, "a" * 500) is False


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "[b-a]", "a**", "*", "\\", "(?P<n>a)", "[a", "a{2,1}", "\\u12", "(?i)a", "[]", "[^\\s\\S]"]
)
def test_what_is_no_regular_expression_is_not_enforced_and_said_so(pattern: str) -> None:
    with pytest.raises(PatternError):
        read_pattern(pattern)

    found = normalise({"type": "string", "pattern": pattern})
    assert found.schema == {"type": "string"}
    assert [(m.keyword, m.verdict) for m in found.messages] == [("pattern", Verdict.RELAXED)]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["string", "#", "#/a"]),
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                (
                    *(
                        "type",
                        "properties",
                        "items",
                        "anyOf",
                        "allOf",
                        "oneOf",
                        "not",
                        "$ref",
                        "$defs",
                        "enum",
                        "const",
                    ),
                    *("pattern", "required", "minimum", "maxLength", "additionalProperties", "patternProperties"),
                    *("propertyNames", "prefixItems", "minItems", "multipleOf", "nullable", "a"),
                )
            ),
            below,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_JSON, st.booleans())
def test_no_json_value_makes_the_normaliser_raise(schema: Any, strict: bool) -> None:
    found = normalise(schema, strict=strict, arguments=True)

    assert json.dumps(found.schema, allow_nan=False)
    assert (found.verdict is Verdict.EXACT) == all(m.verdict is Verdict.EXACT for m in found.messages)


def test_normalising_imports_nothing_but_the_standard_library() -> None:
    code = "import sys; import dynamo_structural_tags.schema, dynamo_structural_tags.check; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"xgrammar", "torch", "numpy", "vllm", "dynamo", "jsonschema", "pydantic"} & set(ran.stdout.split())
