"""Random schemas, values and sampled texts: jsonschema on the original against xgrammar on the normalised schema.

`SCHEMA_SAMPLES=20000` runs more than the usual number of schemas, `SCHEMA_SEED` starts elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import random
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from byte_matcher import accepts, compiled, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schemas import random_document, random_schema, random_value, spellings, valid

from dynamo_structural_tags.schema import Normalised, Verdict, normalise

SAMPLES = int(os.environ.get("SCHEMA_SAMPLES", "1200"))
SEED = int(os.environ.get("SCHEMA_SEED", "0"))


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def _check(schema: Any, rng: random.Random, counted: dict[str, int]) -> None:
    found: Normalised = normalise(schema)
    grammar = compiled(found.schema)
    relaxed = {m.keyword for m in found.messages if m.verdict is Verdict.RELAXED}
    assert (found.verdict is Verdict.EXACT) == (not relaxed and found.verdict is not Verdict.IMPOSSIBLE)
    for _ in range(8):
        value = random_value(rng, schema, schema if isinstance(schema, dict) else {})
        try:
            ok = valid(schema, value)
        except (RecursionError, OverflowError):  # a reference that only refers to itself; 1e22 as a multiple of 0.5
            continue
        if ok:
            counted["valid"] += 1
            assert found.verdict is not Verdict.IMPOSSIBLE, (schema, value)
            assert any(accepts(grammar, text) for text in spellings(value)), (
                "a valid value is impossible",
                schema,
                value,
                found,
            )
        elif found.verdict is Verdict.EXACT:
            counted["invalid"] += 1
            assert not any(accepts(grammar, text) for text in spellings(value, 50)), (
                "an invalid value passes",
                schema,
                value,
                found,
            )
    for _ in range(4):
        text = sample(grammar, rng)
        if text is None or not _finite(value := json.loads(text)):  # too long, or 1E999, which JSON allows
            continue
        counted["sampled"] += 1
        if found.verdict is Verdict.EXACT:
            counted["sampled exact"] += 1
            assert valid(schema, value), ("a sampled text is invalid", schema, text, found)


def test_valid_values_stay_possible_and_sampled_texts_are_valid_unless_a_message_names_the_keyword() -> None:
    counted = dict.fromkeys(("valid", "invalid", "sampled", "sampled exact"), 0)
    for seed in range(SEED, SEED + SAMPLES):
        rng = random.Random(seed)
        _check(random_document(rng) if seed % 2 else random_schema(rng), rng, counted)

    assert counted["valid"] > 3 * SAMPLES, counted
    assert counted["sampled exact"] > SAMPLES, counted
    assert counted["invalid"] > SAMPLES // 2, counted


_LEAF = st.one_of(st.none(), st.booleans(), st.integers(-300, 300), st.text('ab1é"\\/\n\x00', max_size=4))
_SCHEMAS: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]),
                "enum": st.lists(_LEAF, min_size=1, max_size=3),
                "const": _LEAF,
                "minimum": st.integers(-200, 200),
                "maximum": st.integers(-200, 200),
                "maxLength": st.integers(0, 3),
                "minLength": st.integers(0, 3),
                "pattern": st.sampled_from(["^a", "1$", "a|b", "^[^b]*$", "é", '"', r"^\\*$"]),
                "properties": st.dictionaries(st.text('ab"é\n', max_size=2), _SCHEMAS, max_size=3),
                "required": st.lists(st.text('ab"é\n', max_size=2), max_size=2),
                "additionalProperties": _SCHEMAS,
                "items": _SCHEMAS,
                "prefixItems": st.lists(_SCHEMAS, min_size=1, max_size=2),
                "minItems": st.integers(0, 2),
                "maxItems": st.integers(0, 3),
                "anyOf": st.lists(_SCHEMAS, min_size=1, max_size=2),
                "allOf": st.lists(_SCHEMAS, min_size=1, max_size=2),
                "oneOf": st.lists(_SCHEMAS, min_size=1, max_size=2),
            },
        ),
    )
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_SCHEMAS, st.integers(0, 2**32))
def test_schemas_with_any_keywords_next_to_each_other_stay_faithful(schema: Any, seed: int) -> None:
    _check(schema, random.Random(seed), dict.fromkeys(("valid", "invalid", "sampled", "sampled exact"), 0))
