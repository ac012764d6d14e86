"""Hostile schemas: a bounded answer, never an exception; and what normalising them costs in schemas read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hostile_schemas import HOSTILE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.schema import LIMITS, Verdict, normalise
from dynamo_structural_tags.schema.pattern_matcher import finds
from dynamo_structural_tags.schema.pattern_reader import PatternError, read_pattern
from dynamo_structural_tags.schema.reader import Reader


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
