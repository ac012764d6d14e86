"""Keywords of objects: declared, patterned and other keys, their names and their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .meet import Meeting
from .pattern_matcher import finds
from .pattern_reader import PatternError, read_pattern
from .pattern_tree import Alt, Node
from .shapes import ANY, NEVER, Literals, Object, Shape, Text, is_member, union
from .typed import Note, bounds
from .verdicts import LIMITS, Verdict

__all__ = ["read_object"]

_COUNTED = 20  # keys of an object whose number is enforced: xgrammar's grammar grows with its square

Read = Callable[[Any, tuple[str | int, ...]], Shape]
"""Reads a schema below the one at hand: the schema, and the steps that lead to it."""


def read_object(schema: Mapping[str, Any], strict: bool, read: Read, meeting: Meeting, note: Note) -> Shape:
    """The object that the keywords of one schema describe."""
    declared = _mapping(schema, "properties", note)
    other = schema.get("additionalProperties", schema.get("unevaluatedProperties", not strict))
    if "unevaluatedProperties" in schema and "additionalProperties" not in schema:
        if schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef"}:
            other = not strict
            note("unevaluatedProperties", Verdict.RELAXED, "not enforced next to other schemas")
        rest = read(other, ("unevaluatedProperties",))
    else:
        rest = read(other, ("additionalProperties",))
    if strict and "additionalProperties" not in schema and (declared or "properties" in schema):
        note("additionalProperties", Verdict.EXACT, "read as false: the tool is strict")

    kept = {name: value for name, value in list(declared.items())[: LIMITS.properties] if _is_text(name)}
    if len(kept) < min(len(declared), LIMITS.properties):
        note("properties", Verdict.RELAXED, "keys with lone surrogates: not enforced")
        rest = ANY
    if len(declared) > LIMITS.properties:
        note("properties", Verdict.RELAXED, f"{len(declared)} keys: those after {LIMITS.properties} may hold anything")
        rest = ANY
    patterned = _mapping(schema, "patternProperties", note)
    patterns = {p: read(value, ("patternProperties", p)) for p, value in list(patterned.items())[: LIMITS.branches]}
    if len(patterns) < len(patterned):
        note("patternProperties", Verdict.RELAXED, f"those after {LIMITS.branches} are not enforced")
        rest = ANY

    def of_patterns(name: str, shape: Shape | None) -> Shape:
        """The shape of a key: what is declared, and what each pattern that finds the name adds."""
        for pattern, value in patterns.items():
            found = finds(pattern, name)
            if found is None:
                note(
                    "patternProperties",
                    Verdict.RELAXED,
                    f"not enforced for {name!r:.60}: the pattern is not understood",
                )
                shape = ANY if shape is None else shape
            elif found:
                shape = value if shape is None else meeting.both(shape, value)
        return rest if shape is None else shape

    properties = {name: of_patterns(name, read(value, ("properties", name))) for name, value in kept.items()}
    required = _names(schema, note)
    for name in sorted(required - properties.keys()):
        if len(properties) >= LIMITS.properties:
            note("required", Verdict.RELAXED, f"{name!r:.60} is not enforced: too many keys")
            required -= {name}
        else:
            properties[name] = of_patterns(name, None)
    keys: Node | None = None
    if patterns:
        keys, rest = _patterned(patterns, bool(properties), rest, note)
    if "propertyNames" in schema:
        names = read(schema["propertyNames"], ("propertyNames",))
        properties = {n: shape if is_member(n, names) else NEVER for n, shape in properties.items()}
        properties, keys, rest = _named(names, properties, keys, rest, note)

    found = bounds(schema, "minProperties", "maxProperties", note)
    if found is None or (found[1] is not None and found[1] < len(required)):
        return NEVER
    low, high = found
    low = 0 if low <= len(required) else low
    if (low or high is not None) and len(properties) > _COUNTED:
        note(
            "minProperties" if low else "maxProperties", Verdict.RELAXED, f"not enforced for more than {_COUNTED} keys"
        )
        low, high = 0, None
    if low > 1 and rest != NEVER:
        note("minProperties", Verdict.RELAXED, "a key that is written twice counts twice")
    if any(properties[name] == NEVER for name in required):
        return NEVER
    return (Object(properties, frozenset(required), rest, keys, low, high),)


def _mapping(schema: Mapping[str, Any], keyword: str, note: Note) -> Mapping[str, Any]:
    value = schema.get(keyword, {})
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    note(keyword, Verdict.RELAXED, f"{type(value).__name__} in place of an object: ignored")
    return {}


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _names(schema: Mapping[str, Any], note: Note) -> set[str]:
    value = schema.get("required", [])
    if isinstance(value, list):
        names = {name for name in value if isinstance(name, str) and _is_text(name)}
        if len(names) < len(value) and any(not isinstance(name, str) or not _is_text(name) for name in value):
            note("required", Verdict.RELAXED, "entries that are no text: ignored")
        return names
    note("required", Verdict.RELAXED, f"{type(value).__name__} in place of a list: ignored")
    return set()


def _patterned(patterns: Mapping[str, Shape], declared: bool, rest: Shape, note: Note) -> tuple[Node | None, Shape]:
    """Pattern of the other keys' names, and the shape of their values."""
    if rest != NEVER:
        note("patternProperties", Verdict.RELAXED, "enforced for declared keys only: other keys are allowed too")
        return None, union((rest, *patterns.values()))
    nodes: list[Node] = []
    for pattern in patterns:
        try:
            found = read_pattern(pattern)
        except (PatternError, RecursionError) as error:
            note("patternProperties", Verdict.RELAXED, f"names of keys are not enforced: {error}")
            return None, ANY
        if found.widened:
            note("patternProperties", Verdict.RELAXED, f"enforced without {', '.join(found.widened)}")
        nodes.append(found.node)
    if len(nodes) > 1 or declared:
        note("patternProperties", Verdict.RELAXED, "a key's value may be that of another pattern that finds it")
    return Alt(tuple(nodes)), union(patterns.values())


def _named(
    names: Shape, properties: dict[str, Shape], keys: Node | None, rest: Shape, note: Note
) -> tuple[dict[str, Shape], Node | None, Shape]:
    """`propertyNames` for other keys; declared ones are checked already."""
    texts = [part for part in names if isinstance(part, Text)]
    values = (v for part in names if isinstance(part, Literals) for v in part.values)
    strings = {v for v in values if isinstance(v, str) and _is_text(v)}
    if rest == NEVER or names == ANY or texts == [Text()]:
        return properties, keys, rest
    if names and len(texts) + sum(isinstance(part, Literals) for part in names) < len(names):
        others = [part for part in names if not isinstance(part, Text | Literals)]
        if any(type(part).__name__ == "Ref" for part in others):
            note("propertyNames", Verdict.RELAXED, "a reference: not enforced for other keys")
            return properties, keys, rest
    if not texts and keys is None and len(properties) + len(strings) <= LIMITS.properties:
        return {**properties, **dict.fromkeys(sorted(strings - properties.keys()), rest)}, None, NEVER
    if len(texts) == 1 and texts[0].pattern is not None and not strings and keys is None:
        if properties or texts[0].low or texts[0].high is not None:
            note("propertyNames", Verdict.RELAXED, "a declared key may be repeated, and lengths are not enforced")
        return properties, texts[0].pattern, rest
    note("propertyNames", Verdict.RELAXED, "enforced for declared keys only")
    return properties, keys, rest
