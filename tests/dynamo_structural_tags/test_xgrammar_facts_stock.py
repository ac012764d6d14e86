"""What xgrammar's JSON Schema converter does, keyword by keyword: the facts that the normaliser stands on.

Each row is a schema, texts that it accepts, and texts that it refuses; None in place of the texts: it does not
compile. A row that turns red after an xgrammar upgrade names the rewrite to look at (`dynamo_structural_tags.schema`).
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from byte_matcher import STOP, accepts, compiled
from xgrammar import GrammarMatcher

NO: tuple[str, ...] = ()
BEYOND_ASCII = "\u00e9{0}"
A_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
CLOSED = {"additionalProperties": False}

# What the normalised schema is made of: right as it is.
RIGHT: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "any value": ({}, ("1", '"a"', "null", '{"a": [1, {}]}', "-0.5", "1e+22"), ('"\x01"', "01", ".5")),
    "string": ({"type": "string"}, ('"\\n\\u00e9"', '"é😀"', '"\\ud83d\\ude00"'), ('"\t"', '"a\nb"', '"\\x"')),
    "number": ({"type": "number"}, ("-0.5", "1e-07", "1E5", "0.12345678901234567"), ("01", "1.", ".5", "+1")),
    "integer": ({"type": "integer"}, ("0", "-12", "12345678901234567890123"), ("1.0", "1e3", "-0", "01")),
    "integer bounds": ({"type": "integer", "minimum": -3, "maximum": 120}, ("-3", "0", "120"), ("-4", "121", "1200")),
    "64-bit bounds": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        (str(-(2**63)), str(2**63 - 1)),
        (str(-(2**63) - 1), str(2**63)),
    ),
    "multipleOf without bounds": ({"type": "integer", "multipleOf": 5}, ("0", "-15", "10"), ("7", "11")),
    "number equal to its bounds": (
        {"type": "number", "minimum": 0.1, "maximum": 0.1},
        ("0.1", "0.10"),
        ("0.11", "1", "0"),
    ),
    "items": ({"type": "array", "items": {}}, ("[]", '[1, "a"]', "[[]]"), ("[1,]",)),
    "no items": ({"type": "array", "items": False}, ("[]", "[ ]"), ("[1]",)),
    "number of items": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ("[1]", "[1, 2]"),
        ("[]", "[1,2,3]"),
    ),
    "places and rest": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": {"type": "null"}, "minItems": 1},
        ("[1]", '[1, "a", null]'),
        ("[]", '["a"]', "[1, 2, 3]"),
    ),
    "closed object": ({**A_OBJECT, **CLOSED}, ("{}", '{"b": "x"}', '{"a": 1, "b": "x"}', "{ }"), ('{"c": 1}',)),
    "open object without declared keys": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ("{}", '{"x": 1, "y": 2}'),
        ('{"x": "a"}',),
    ),
    "keys by pattern beside declared ones": (
        {**A_OBJECT, "required": ["a"], "patternProperties": {"^x[0-9]$": {"type": "null"}}, **CLOSED},
        ('{"a": 1}', '{"a": 1, "b": "", "x1": null}'),
        ("{}", '{"a": 1, "x": null}', '{"a": 1, "x1": 1}'),
    ),
    "number of keys": (
        {**A_OBJECT, **CLOSED, "minProperties": 1, "maxProperties": 1},
        ('{"a": 1}', '{"b": "x"}'),
        ("{}", '{"a": 1, "b": "x"}'),
    ),
    "scalar literals": ({"enum": ["a", 1, None, True, 'é\n"']}, ('"a"', "1", "null", '"é\\n\\""'), ('"b"', "2")),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, ("1", '"x"'), ('"y"', "null")),
    "reference to itself": (
        {
            "$ref": "#/$defs/N",
            "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, **CLOSED}},
        },
        ("{}", '{"n": {"n": {}}}'),
        ('{"n": 1}', '{"m": {}}'),
    ),
    "pattern with a character beyond ASCII is taken as text of JSON": (
        {"type": "string", "pattern": r'^(?:a|\\["\\n])*' + BEYOND_ASCII + "$"},
        ('"a"', '"\\"\\\\"', '"a\\n"', '""'),
        ('"b"', '"a"a"', '"\\t"'),
    ),
    "counted repeats of spellings": (
        {"type": "string", "pattern": r"^(?:[ -!#-Z]|\\[nt]){2,3}" + BEYOND_ASCII + "$"},
        ('"\\nA"', '"AB\\t"'),
        ('"A"', '"ABCD"', '"\\n"'),
    ),
}  # fmt: skip

# What the normaliser must never hand over: wrong, each in its own way.
WRONG: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "pattern matches the whole text": ({"type": "string", "pattern": "^https?://"}, ('"https://"',), ('"https://a"',)),
    "pattern without anchors too": ({"type": "string", "pattern": "b"}, ('"b"',), ('"abc"',)),
    "pattern of ASCII forbids escapes": ({"type": "string", "pattern": "^.*$"}, ('"é"',), ('"a\\nb"', '"\\""')),
    "lookahead is ignored": ({"type": "string", "pattern": "^(?=a)b"}, ('"b"',), NO),
    "maxLength lets control characters": ({"type": "string", "maxLength": 2}, ('"\x01"', '"\t"'), ('"\\n"',)),
    "format forbids addresses": ({"type": "string", "format": "email"}, ('"a@b"',), ('"a@b.c"',)),
    "const ignores type": ({"type": "string", "const": 1}, ("1",), NO),
    "const allows no spaces": ({"const": {"a": 1}}, ('{"a":1}',), ('{"a": 1}',)),
    "const has 17 digits": ({"const": 0.1}, ("0.10000000000000001",), ("0.1",)),
    "integers beyond 64 bits change": ({"const": 2**63}, NO, (str(2**63),)),
    "bounded numbers have 6 decimals": ({"type": "number", "minimum": 0}, ("0.5",), ("0.12345678", "1e-07", "1e+22")),
    "multipleOf with one bound is ignored": ({"type": "integer", "multipleOf": 5, "minimum": 0}, ("7",), NO),
    "multipleOf of numbers is ignored": ({"type": "number", "multipleOf": 0.5}, ("0.3",), NO),
    "uniqueItems is ignored": ({"type": "array", "items": {}, "uniqueItems": True}, ("[1,1]",), NO),
    "contains is ignored": ({"type": "array", "items": {}, "contains": {"const": 1}}, ("[2]",), NO),
    "prefixItems close the list": ({"type": "array", "prefixItems": [{}]}, ("[1]",), ("[1, 2]",)),
    "required but not declared": ({**A_OBJECT, **CLOSED, "required": ["z"]}, ('{"a": 1}',), ('{"z": 1}', "{}")),
    "required alone closes the object": ({"type": "object", "required": ["z"]}, ("{}",), ('{"z": 1}',)),
    "objects are closed by declaring keys": (A_OBJECT, ('{"a": 1}',), ('{"a": 1, "c": 1}',)),
    "keys in the schema's order only": ({**A_OBJECT, **CLOSED}, ('{"a": 1, "b": ""}',), ('{"b": "", "a": 1}',)),
    "a declared key comes again in escapes": (
        {**A_OBJECT, "additionalProperties": True},
        ('{"c": 1, "\\u0061": "x"}',),
        ('{"c": 1, "a": "x"}',),
    ),
    "patternProperties match whole keys": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
        ('{"x": 1}',),
        ('{"x1": 1}', '{"y": 1}'),
    ),
    "patterns do not keep from declared keys": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "patternProperties": {"^[a-z]$": {}}, **CLOSED},
        ('{"a": 1}', '{"a": null, "a": 1}'),
        NO,
    ),
    "keywords beside anyOf are ignored": ({"anyOf": [{"type": "integer"}], "minimum": 3}, ("1",), NO),
    "oneOf is anyOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ("1",), NO),
    "allOf of two is any value": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, ("1", '"a"'), NO),
    "not is ignored": ({"type": "integer", "not": {"const": 1}}, ("1",), NO),
    "if is ignored": ({"if": {"type": "integer"}, "then": {"minimum": 4}}, ("1",), NO),
    "keywords beside $ref are ignored": (
        {"$ref": "#/$defs/N", "minimum": 5, "$defs": {"N": {"type": "integer"}}},
        ("1",),
        NO,
    ),
    "remote references are any value": ({"$ref": "http://x/y"}, ("1", '"a"'), NO),
    "anchors are any value": ({"$ref": "#N", "$defs": {"N": {"$anchor": "N", "type": "integer"}}}, ("1", '"a"'), NO),
    "a reference to itself accepts nothing": ({"$ref": "#"}, NO, ("1", '"a"', "{}")),
    "anyOf of nothing is empty text": ({"anyOf": []}, ("",), ("1",)),
}  # fmt: skip

# What fails for the whole request.
FAILS: dict[str, Any] = {
    "false": False,
    "unknown type": {"type": "any"},
    "short type": {"type": "str"},
    "unknown type in a list": {"type": ["any", "null"]},
    "list of items": {"type": "array", "items": [{"type": "integer"}]},
    "minItems of a bare list": {"type": "array", "minItems": 2, "items": False},
    "empty enum": {"enum": []},
    "Unicode property": {"type": "string", "pattern": r"^\p{L}$"},
    "word boundary": {"type": "string", "pattern": r"^a\b$"},
    "backreference": {"type": "string", "pattern": r"^(a)\1$"},
    "missing definition": {"$ref": "#/$defs/X"},
    "escaped pointer": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
    "fraction as an integer's bound": {"type": "integer", "minimum": 0.5},
    "bound of draft 4": {"type": "integer", "exclusiveMinimum": True, "minimum": 1},
    "bound beyond 64 bits": {"type": "integer", "maximum": 10**30},
    "maxItems below the places": {"type": "array", "prefixItems": [{}, {}], "maxItems": 1},
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_xgrammar_accepts_and_refuses(name: str) -> None:
    schema, accepted, refused = {**RIGHT, **WRONG}[name]
    grammar = compiled(schema)

    assert [text for text in accepted if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


@pytest.mark.parametrize("name", FAILS)
def test_xgrammar_refuses_the_schema_and_with_it_the_request(name: str) -> None:
    with pytest.raises(Exception, match="."):
        compiled(FAILS[name])


@pytest.mark.skipif(version("xgrammar") != "0.2.7", reason="a fault of xgrammar 0.2.7 alone: make env")
def test_a_range_of_characters_loses_its_end_and_allows_a_byte_that_nothing_may_follow() -> None:
    matcher = GrammarMatcher(compiled({"type": "string", "pattern": "^[\u0800-\ud7ff]$"}))

    assert matcher.accept_token(ord('"'))
    assert matcher.accept_token(0xED)
    assert not any(matcher.accept_token(byte) for byte in range(STOP + 1))


def test_integer_bounds_are_right_around_every_power_of_ten() -> None:
    edges = (None, -101, -100, -99, -10, -9, -1, 0, 1, 9, 10, 11, 99, 100, 101)
    for low in edges:
        for high in edges:
            if low is not None and high is not None and low > high:
                continue
            bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
            grammar = compiled({"type": "integer", **bounds})
            for value in (*range(-12, 13), *range(-102, -97), *range(98, 103), 999, 1000, -1000):
                wanted = (low is None or value >= low) and (high is None or value <= high)

                assert accepts(grammar, json.dumps(value)) == wanted, (bounds, value)
