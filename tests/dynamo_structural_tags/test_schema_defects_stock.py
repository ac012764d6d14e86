"""The schema defects seen with stock Dynamo 1.6.1 and xgrammar, each with the right value. G: grammar, D: parser."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from byte_matcher import accepts, compiled

from dynamo_structural_tags.schema import Normalised, Verdict, normalise

_NO_MULTIPLE = {"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": 5}


def _normalised(schema: Any, **how: bool) -> tuple[Normalised, Any]:
    found = normalise(schema, **how)
    return found, compiled(found.schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array"}}},
        {"anyOf": [{"type": "array"}, {"type": "null"}]},
        {"type": ["array", "null"]},
    ],
)
def test_g1_a_bare_array_holds_anything(schema: Any) -> None:
    found, grammar = _normalised(schema)

    assert found.verdict is Verdict.EXACT
    assert all(accepts(grammar, text) for text in ("[]", "[72]", '["a", {"b": []}]'))


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^https?://", "https://a.b/c?d", "ftp://a"),
        ("^/", "/etc", "etc"),
        (r"\.py$", "a.py", "a.pyc"),
        ("foo", "a foo b", "fo"),
        ("^a|b$", "a\\nz", "xbx"),
        (r"^[^\"]+$", "a\\\\b", 'a\\"b'),
    ],
)
def test_g2_a_pattern_is_searched_for(pattern: str, right: str, wrong: str) -> None:
    found, grammar = _normalised({"type": "string", "pattern": pattern})

    assert found.verdict is Verdict.EXACT
    assert accepts(grammar, f'"{right}"')
    assert not accepts(grammar, f'"{wrong}"')


@pytest.mark.parametrize("unit", [r"\\", '"', r"\n", r"\x00", r"\x7f", r'["\\]', r"[\n-\r]", r"[a\\]", "a"])
@pytest.mark.parametrize("count", ["*", "+", "?", "{2}", "{0,2}", "{1,}"])
def test_a_repeat_counts_characters_however_json_spells_them(unit: str, count: str) -> None:
    pattern = f"^{unit}{count}$"
    found, grammar = _normalised({"type": "string", "pattern": pattern})

    assert found.verdict is Verdict.EXACT
    for size in range(4):
        for characters in itertools.product('\\"\n\x00\x7f\fa', repeat=size):
            text = "".join(characters)
            expected = re.fullmatch(pattern[1:-1], text) is not None
            assert accepts(grammar, json.dumps(text).replace("\x7f", "\\u007f")) is expected, text


@pytest.mark.parametrize(
    ("schema", "keyword", "right"),
    [
        ({"type": "string", "pattern": "^(?!-)[a-z-]+$"}, "pattern", '"a-b"'),
        ({"type": "string", "pattern": r"^\p{Lu}\p{L}*$"}, "pattern", '"Éa"'),
        ({"type": "string", "pattern": r"(a)\1\b"}, "pattern", '"xaa"'),
        ({"type": "any"}, "type", '{"a": 1}'),
        ({"type": "file"}, "type", '"a"'),
        ({"type": "dict"}, "type", '{"a": 1}'),
        ({"type": "str"}, "type", '"a"'),
    ],
)
def test_g3_what_did_not_compile_is_relaxed_and_named(schema: Any, keyword: str, right: str) -> None:
    found, grammar = _normalised(schema)

    assert found.verdict is Verdict.RELAXED
    assert [m.keyword for m in found.messages] == [keyword]
    assert accepts(grammar, right)


def test_g5_a_required_key_after_an_optional_one_is_required_wherever_it_is_declared() -> None:
    properties = {"o": {"type": "integer"}, "r": {"type": "string"}}
    found, grammar = _normalised({"type": "object", "properties": properties, "required": ["r", "undeclared"]})

    assert found.verdict is Verdict.EXACT
    assert accepts(grammar, '{"r": "x", "undeclared": 1}')
    assert accepts(grammar, '{"o": 1, "r": "x", "undeclared": 1}')
    assert not accepts(grammar, '{"o": 1, "r": "x"}')
    assert not accepts(grammar, '{"o": 1, "o": 2, "r": "x", "undeclared": 1}')


def test_g6_objects_are_open_unless_they_say_otherwise_or_the_tool_is_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = '{"a": 1, "other": "x"}'

    assert accepts(_normalised(schema)[1], text)
    assert not accepts(_normalised(schema, strict=True)[1], text)
    assert not accepts(_normalised({**schema, "additionalProperties": False})[1], text)


def test_a_declared_key_cannot_come_again_in_another_spelling() -> None:
    _, grammar = _normalised({"type": "object", "properties": {"aé": {"type": "integer"}}})

    assert accepts(grammar, '{"aé": 1, "a": "x", "aéé": "x", "k\\n": 2}')
    assert not accepts(grammar, '{"b": 1, "\\u0061\\u00e9": "x"}')
    assert not accepts(grammar, '{"b": 1, "a\\u00e9": "x"}')


def test_g7_and_d22_a_string_with_a_length_holds_escapes_and_no_raw_control_character() -> None:
    found, grammar = _normalised({"type": "string", "maxLength": 2})

    assert found.verdict is Verdict.EXACT
    assert all(accepts(grammar, text) for text in ('""', '"\\n\\""', '"é😀"', '"\\ud83d\\ude00x"', '"\\\\\\t"'))
    assert not any(accepts(grammar, text) for text in ('"\x0e"', '"\t"', '"abc"', '"\\n\\n\\n"', '"\\ud83d"'))


def test_d21_an_enum_and_a_list_of_types_keep_the_type_of_each_value() -> None:
    enum, grammar = _normalised({"enum": ["red", "1", 2]})
    assert enum.schema == {"enum": ["red", "1", 2]}
    assert accepts(grammar, "2")
    assert not accepts(grammar, '"2"')

    types, grammar = _normalised({"type": ["integer", "string"], "minimum": 5})
    assert types.verdict is Verdict.EXACT
    assert accepts(grammar, "7")
    assert accepts(grammar, '"7"')
    assert not accepts(grammar, "4")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}},
        {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "integer"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer"}}},
        {"$ref": "#N", "$defs": {"N": {"$anchor": "N", "type": "integer"}}},
        {"$ref": "n.json", "$defs": {"N": {"$id": "n.json", "type": "integer"}}},
        {"allOf": [{"$ref": "#/$defs/N"}], "description": "d", "$defs": {"N": {"type": "integer"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "integer"}}},
    ],
)
def test_references_inside_the_document_are_followed_in_all_their_forms(schema: Any) -> None:
    found, grammar = _normalised(schema)

    assert found.verdict is Verdict.EXACT
    assert accepts(grammar, "1")
    assert not accepts(grammar, '"a"')


@pytest.mark.parametrize("uri", ["http://x/y.json", "other.json#/a", "#/$defs/missing", "#missing", 7])
def test_a_reference_that_leads_nowhere_is_any_value_and_nothing_is_fetched(uri: Any) -> None:
    found, grammar = _normalised({"type": "object", "properties": {"a": {"$ref": uri}}})

    assert [(m.path, m.keyword) for m in found.messages] == [("#/properties/a", "$ref")]
    assert accepts(grammar, '{"a": [1]}')


def test_siblings_of_a_reference_count_since_2019_and_not_before() -> None:
    schema = {"$ref": "#/$defs/N", "minimum": 5, "$defs": {"N": {"type": "integer"}}}

    assert not accepts(_normalised(schema)[1], "4")
    assert accepts(_normalised({**schema, "$schema": "http://json-schema.org/draft-07/schema#"})[1], "4")


def test_formats_and_bounds_of_fractions_hold_for_strict_tools() -> None:
    date, grammar = _normalised({"type": "string", "format": "date"}, strict=True)
    assert date.verdict is Verdict.EXACT
    assert accepts(grammar, '"2026-11-30"')
    assert not accepts(grammar, '"2026-11-31"')
    assert accepts(_normalised({"type": "string", "format": "date"})[1], '"tomorrow"')

    _, grammar = _normalised({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, strict=True)
    assert accepts(grammar, "0.25")
    assert not accepts(grammar, "1")
    assert accepts(_normalised({"type": "number", "minimum": 0})[1], "1e-07")


def test_a_schema_that_no_value_satisfies_is_impossible_and_enforces_nothing() -> None:
    schemas: tuple[Any, ...] = (
        False,
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"not": {}},
        _NO_MULTIPLE,
    )
    for schema in schemas:
        found, grammar = _normalised({"type": "object", "properties": {"a": schema}, "required": ["a"]})
        assert found.verdict is Verdict.IMPOSSIBLE
        assert accepts(grammar, '{"a": 1}')

        optional, grammar = _normalised({"type": "object", "properties": {"a": schema}})
        assert optional.verdict is Verdict.EXACT
        assert accepts(grammar, '{"b": 1}')
        assert not accepts(grammar, '{"a": 4}')


def test_a_length_beside_a_pattern_holds_with_it_or_is_named() -> None:
    both, grammar = _normalised({"type": "string", "pattern": "^[a-z]{1,9}$", "maxLength": 2})
    assert both.verdict is Verdict.EXACT
    assert [accepts(grammar, text) for text in ('""', '"ab"', '"abc"')] == [False, True, False]

    none, _ = _normalised({"type": "string", "pattern": "^[a-z]{1,3}$", "maxLength": 0})
    assert [(m.keyword, m.verdict) for m in none.messages] == [("maxLength", Verdict.RELAXED)]


def test_one_and_true_and_zero_and_false_are_different_alternatives() -> None:
    found, grammar = _normalised({"anyOf": [{"const": 1}, {"enum": ["\x7f", True]}, {"const": 0}, {"const": False}]})

    assert found.verdict is Verdict.EXACT
    assert [accepts(grammar, text) for text in ("1", "true", "0", "false", '"\x7f"', "2", "null")] == [True] * 5 + [
        False
    ] * 2
