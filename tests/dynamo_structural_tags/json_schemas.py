"""Random JSON Schemas, instances for them, and jsonschema with ECMA-262's patterns as the judge."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema

PATTERNS = [
    "^https?://", r"\.py$", "^[a-z]{1,3}$", "b", "^(a|b)+$", r"^[^/\"]*$", r"^\d{2}-\d{2}$", "^a|b$", r"^\S+$", r"\\",
    "^.{2,4}$", "(?=a)b", r"\bfoo", r"^\p{L}+$", "^(x+)+y", "é", "^$", r"^[\w.-]+@\w+$",
]  # fmt: skip
KEY_PATTERNS = ["^https?://", "b", "^a", "(?=a)b", "é", "^x-[0-9]"]  # jsonschema reads these with Python's `re`
WORDS = [
    "",
    "a",
    "b",
    "foo",
    "x y",
    "https://x",
    "a.py",
    "12-34",
    "é",
    "😀",
    'q"q',
    "\\",
    "a/b",
    "\n",
    "</arg_value>",
    "xy",
]
KEYS = ["a", "b", "ab", "x-1", "é", 'k"', "", "name"]


def _ecma(validator: Any, pattern: Any, instance: Any, schema: Any) -> Any:
    if validator.is_type(instance, "string") and isinstance(pattern, str) and not ecma_search(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def ecma_search(pattern: str, text: str) -> bool:
    """A search with ECMA-262's meaning of `$`, `\\d`, `\\w` and `\\p{L}`."""
    if r"\p{L}" in pattern:
        return re.fullmatch(r"[^\W\d_]+", text) is not None
    return re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text, re.ASCII) is not None


Judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _ecma})


def valid(schema: Any, value: Any) -> bool:
    return bool(Judge(schema).is_valid(value))


def random_schema(rng: random.Random, depth: int = 0, definitions: bool = False) -> Any:
    """A schema as tools carry it, with odd ones among them."""
    kind = rng.choice(
        ["string"] * 3 + ["integer", "integer", "number", "boolean", "null", "enum", "const", "any"]
        + (["object", "array"] * 3 + ["anyOf", "oneOf", "allOf", "types", "bool", "not", "loose"] if depth < 3 else [])
        + (["ref"] * 2 if definitions else [])
    )  # fmt: skip

    def below() -> Any:
        return random_schema(rng, depth + 1, definitions)

    def maybe(schema: dict[str, Any], **keywords: Any) -> dict[str, Any]:
        return {**schema, **{k: v for k, v in keywords.items() if rng.random() < 0.25}}

    low = rng.randint(0, 3)
    if kind == "string":
        return maybe(
            {"type": "string"}, pattern=rng.choice(PATTERNS), minLength=low, maxLength=low + rng.randint(0, 4),
            format=rng.choice(["uri", "date", "email"]), description="d",
        )  # fmt: skip
    if kind in ("integer", "number"):
        base = rng.choice([0, 1, -7, 0.5, 99, -12.25])
        return maybe(
            {"type": kind}, minimum=base, maximum=base + rng.choice([0, 3, 40]), exclusiveMinimum=base,
            exclusiveMaximum=base + 9, multipleOf=rng.choice([1, 2, 5, 0.5]),
        )  # fmt: skip
    if kind == "object":
        keys = rng.sample(KEYS, rng.randint(0, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {key: below() for key in keys}}
        schema["required"] = [key for key in keys if rng.random() < 0.5] + (["z"] if rng.random() < 0.1 else [])
        return maybe(
            schema, additionalProperties=rng.choice([False, False, True, {"type": "integer"}]),
            patternProperties={rng.choice(KEY_PATTERNS): below()}, minProperties=low, maxProperties=low + 2,
            propertyNames=rng.choice([{"pattern": "^[a-z]+$"}, {"enum": ["a", "b", "q"]}, {"maxLength": 2}]),
        )  # fmt: skip
    if kind == "array":
        return maybe(
            {"type": "array"}, items=below(), minItems=low, maxItems=low + 2, uniqueItems=True,
            prefixItems=[below(), below()],
        )  # fmt: skip
    if kind in ("anyOf", "oneOf", "allOf"):
        return {**({"type": "object"} if rng.random() < 0.2 else {}), kind: [below() for _ in range(rng.randint(1, 3))]}
    if kind == "types":
        types = rng.sample(["string", "integer", "null", "boolean", "array", "object"], 2)
        return maybe({"type": types}, maxLength=2, minimum=1, items=below(), required=["a"])
    if kind == "not":
        return {"not": rng.choice([{"type": "string"}, {"const": 1}, {"required": ["a"]}])}
    if kind == "loose":
        return rng.choice(
            [{"minimum": 3}, {"maxLength": 2}, {"required": ["a"]}, {"items": below()}, {"properties": {"a": below()}}]
        )
    if kind == "enum":
        values = [1, 2.5, "a", None, True, "1", [1, {"a": 1}], {"a": "b"}, -3, 'q"', "\x7f"]
        return maybe({"enum": rng.sample(values, rng.randint(1, 4))}, type=rng.choice(["string", "integer", "object"]))
    if kind == "const":
        return {"const": rng.choice([1, "x", None, False, [], {}, {"k": [1, "y"]}, 0.1])}
    if kind == "ref":
        return {"$ref": rng.choice(["#/$defs/node", "#/$defs/word", "#/$defs/pair"])}
    return rng.choice([True, {}, {"description": "any"}]) if kind == "any" else rng.choice([True, False])


def random_document(rng: random.Random) -> dict[str, Any]:
    """A schema with definitions, one of which contains itself."""
    document = random_schema(rng, 0, True)
    if not isinstance(document, dict):
        document = {"anyOf": [document]}
    node = {"type": "object", "properties": {"v": random_schema(rng, 2), "next": {"$ref": "#/$defs/node"}}}
    definitions = {
        "node": {**node, "additionalProperties": False, "required": ["v"]},
        "word": {"type": "string", "maxLength": 3},
        "pair": {"type": "array", "prefixItems": [{"$ref": "#/$defs/word"}, random_schema(rng, 2)], "items": False},
    }
    return {**document, "$defs": definitions}


def random_value(rng: random.Random, schema: Any, root: Any, depth: int = 0) -> Any:
    """A value that the schema's keywords suggest; it may still be invalid."""
    if depth > 6 or not isinstance(schema, dict) or rng.random() < 0.05:
        return rng.choice([1, "a", None, True, 0.5, [], {}, {"a": 1}, [1, "b"], rng.choice(WORDS)])
    if "$ref" in schema:
        return random_value(rng, root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return random_value(rng, rng.choice(schema[keyword]), root, depth + 1)
    kinds = schema.get("type", rng.choice(["string", "integer", "object", "array"]))
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "string":
        return (
            rng.choice(WORDS)
            if rng.random() < 0.6
            else "".join(rng.choice('ab1-/.\\"é😀\n') for _ in range(rng.randint(0, 6)))
        )
    if kind == "integer":
        return rng.randint(-15, 110)
    if kind == "number":
        return rng.choice([rng.randint(-20, 110), rng.random() * 10, -1e-9, 1e22, 0.5, 2.25])
    if kind == "object":
        value = {}
        for key, one in schema.get("properties", {}).items():
            if key in schema.get("required", ()) or rng.random() < 0.6:
                value[key] = random_value(rng, one, root, depth + 1)
        for key in schema.get("required", ()):
            value.setdefault(key, random_value(rng, schema.get("additionalProperties", {}), root, depth + 1))
        if rng.random() < 0.4:
            other = rng.choice([*KEYS, "other", "b.py", *WORDS])
            value.setdefault(other, random_value(rng, schema.get("additionalProperties", {}), root, depth + 1))
        return value
    if kind == "array":
        front = schema.get("prefixItems", [])
        size = rng.randint(0, 4)
        return [
            random_value(rng, front[i] if i < len(front) else schema.get("items", {}), root, depth + 1)
            for i in range(size)
        ]
    return {"boolean": rng.random() < 0.5, "null": None}.get(kind)


def spellings(value: Any, limit: int = 3000) -> Iterator[str]:
    """JSON as the model's template writes it, in every order of keys; whole floats as integers, which they equal."""
    return itertools.islice((json.dumps(one, ensure_ascii=False) for one in _orders(value)), limit)


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    elif isinstance(value, list):
        for values in itertools.product(*map(_orders, value)):
            yield list(values)
    else:
        yield int(value) if isinstance(value, float) and value.is_integer() else value
