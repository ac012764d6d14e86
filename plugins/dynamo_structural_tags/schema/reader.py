"""Reads a JSON Schema into shapes: types, literals, references and combinations of schemas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..type_names import TYPE_NAMES, TYPES
from .meet import Meeting
from .objects import read_object
from .refs import References
from .shapes import (
    ANY,
    BOOLEAN,
    NEVER,
    NULL,
    Anything,
    Array,
    Literals,
    Number,
    Object,
    Ref,
    Shape,
    Text,
    is_member,
    literal_key,
    union,
)
from .typed import bounds, read_number, read_text
from .verdicts import LIMITS, Message, Verdict, pointer

__all__ = ["Reader"]

Path = tuple[str | int, ...]

_IGNORED = ("if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "$dynamicRef",
            "unevaluatedItems", "$recursiveRef")  # fmt: skip
_ABOUT = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
               "minProperties", "maxProperties", "unevaluatedProperties"),
}  # fmt: skip
#: What a schema may say beside what it says of its types.
_BESIDE_TYPES = frozenset(("enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "nullable", *_IGNORED))
_SCALARS = frozenset(("string", "boolean", "null", "integer", "number"))
_BESIDE_SCALARS = _BESIDE_TYPES.union(_ABOUT["string"], _ABOUT["number"])
_SILENT = {"then": "if", "else": "if"}  # without effect unless the other is there


class Reader:
    """Reads one document. Definitions are read when something needs them; `definitions` holds them by name."""

    def __init__(self, root: Any, strict: bool) -> None:
        self.strict = strict
        self.refs = References(root)
        draft = root.get("$schema") if isinstance(root, dict) else None
        self.old_draft = isinstance(draft, str) and any(f"draft-0{n}" in draft for n in (3, 4, 6, 7))
        self.messages: dict[tuple[str, str, str], Message] = {}
        self.definitions: dict[str, Shape | None] = {}
        self._targets: dict[int, str] = {}
        self._sources: dict[str, tuple[Any, Path, int]] = {}
        self._nodes = 0
        self._open = 0

    def note(self, path: Path, keyword: str, verdict: Verdict, text: str) -> None:
        """Record what becomes of a keyword; the first messages are kept."""
        if len(self.messages) < LIMITS.messages:
            place = pointer(path)
            self.messages.setdefault((place, keyword, text), Message(place, keyword, verdict, text))

    def read(self, schema: Any, path: Path, depth: int) -> Shape:
        """The shape of one schema; wider where a keyword or a limit asks for it, with a message."""
        if schema is True or schema == {}:
            return ANY
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            self.note(path, "", Verdict.RELAXED, f"{type(schema).__name__} in place of a schema: any value")
            return ANY
        self._nodes += 1
        if self._nodes > LIMITS.nodes:
            self.note((), "", Verdict.RELAXED, f"more than {LIMITS.nodes} schemas: the rest are any value")
            return ANY
        if depth > LIMITS.depth:
            self.note(path, "", Verdict.RELAXED, f"nested deeper than {LIMITS.depth}: any value")
            return ANY
        plain = _plain(schema, path)
        if plain is not None:
            return plain
        if self.old_draft and "$ref" in schema and len(schema) > 1:
            schema = {"$ref": schema["$ref"]}  # up to draft 7 a reference's siblings say nothing

        def note(keyword: str, verdict: Verdict, text: str) -> None:
            self.note(path, keyword, verdict, text)

        meeting = Meeting(self.resolve, lambda keyword, text: note(keyword, Verdict.RELAXED, text))
        shape = self._typed(schema, path, depth, meeting)
        if not _BESIDE_TYPES.isdisjoint(schema):
            shape = self._beside_types(schema, shape, path, depth, meeting)
        if shape == NEVER:
            self.note(path, "", Verdict.EXACT, "no value satisfies this schema: it cannot be used")
        return shape

    def _beside_types(self, schema: Mapping[str, Any], shape: Shape, path: Path, depth: int, meeting: Meeting) -> Shape:
        shape = self._literals(schema, shape, path)
        if "$ref" in schema:
            shape = meeting.both(shape, self._reference(schema["$ref"], path, depth))
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema:
                shape = self._combined(schema, keyword, shape, path, depth, meeting)
        shape = self._without(schema, shape, path)
        for keyword in _IGNORED:
            if keyword in schema and _SILENT.get(keyword, keyword) in schema:
                self.note(path, keyword, Verdict.RELAXED, "not enforced: xgrammar has nothing for it")
        if schema.get("nullable") is True and not is_member(None, shape):
            self.note(path, "nullable", Verdict.RELAXED, "OpenAPI's keyword, unknown to JSON Schema: null is allowed")
            shape = union((shape, (NULL,)))
        return shape

    def _typed(self, schema: Mapping[str, Any], path: Path, depth: int, meeting: Meeting) -> Shape:
        types = self._types(schema, path)
        if types is None:
            about = {kind for kind, keywords in _ABOUT.items() if any(k in schema for k in keywords)}
            if not about:
                return ANY
            types = tuple(t for t in TYPES if t != "integer")

        def note(keyword: str, verdict: Verdict, text: str) -> None:
            self.note(path, keyword, verdict, text)

        def read(below: Any, steps: Path) -> Shape:
            return self.read(below, path + steps, depth + 1)

        shapes: list[Shape] = []
        for kind in types:
            if kind == "null":
                shapes.append((NULL,))
            elif kind == "boolean":
                shapes.append((BOOLEAN,))
            elif kind in ("integer", "number"):
                shapes.append(read_number(schema, kind == "integer", path, note))
            elif kind == "string":
                shapes.append(read_text(schema, self.strict, path, note))
            elif kind == "array":
                shapes.append(self._array(schema, path, depth))
            else:
                shapes.append(read_object(schema, self.strict, read, meeting, note))
        return union(shapes)

    def _types(self, schema: Mapping[str, Any], path: Path) -> tuple[str, ...] | None:
        """Types a schema names, in its order; None if it names none that restricts anything."""
        if "type" not in schema:
            return None
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types: dict[str, None] = {}
        for name in named[: LIMITS.branches]:
            known = TYPE_NAMES[name.lower()][0] if isinstance(name, str) and name.lower() in TYPE_NAMES else None
            if known is None:
                self.note(path, "type", Verdict.RELAXED, f"{name!r:.60} is no JSON type: any value")
                return None
            if known != name:
                self.note(path, "type", Verdict.RELAXED, f"{name!r:.60} is no JSON type: read as {known}")
            types[known] = None
        if "number" in types:
            types.pop("integer", None)
        return tuple(types) or None

    def _array(self, schema: Mapping[str, Any], path: Path, depth: int) -> Shape:
        def note(keyword: str, verdict: Verdict, text: str) -> None:
            self.note(path, keyword, verdict, text)

        front, other, keyword = schema.get("prefixItems", []), schema.get("items", True), "prefixItems"
        rest_path: Path = (*path, "items")
        if isinstance(other, list):  # drafts 3 to 2019-09
            front, other, keyword, rest_path = (
                other,
                schema.get("additionalItems", True),
                "items",
                (*path, "additionalItems"),
            )
        if not isinstance(front, list):
            note(keyword, Verdict.RELAXED, f"{type(front).__name__} in place of a list: ignored")
            front = []
        found = bounds(schema, "minItems", "maxItems", note)
        if found is None:
            return NEVER
        low, high = found
        if len(front) > LIMITS.properties:
            note(keyword, Verdict.RELAXED, f"{len(front)} places: those after {LIMITS.properties} hold anything")
            front, other = front[: LIMITS.properties], True
        if schema.get("uniqueItems") not in (None, False) and (high is None or high > 1):
            note("uniqueItems", Verdict.RELAXED, "not enforced: no grammar can")
        prefix = tuple(self.read(item, (*path, keyword, i), depth + 1) for i, item in enumerate(front))
        return (Array(prefix, self.read(other, rest_path, depth + 1), low, high),)

    def _literals(self, schema: Mapping[str, Any], shape: Shape, path: Path) -> Shape:
        """`const` and `enum`, without the values that the other keywords forbid."""
        for keyword in ("const", "enum"):
            if keyword not in schema:
                continue
            values = [schema["const"]] if keyword == "const" else schema["enum"]
            if not isinstance(values, list) or len(values) > LIMITS.literals:
                size = f"{len(values)} values" if isinstance(values, list) else type(values).__name__
                self.note(path, keyword, Verdict.RELAXED, f"{size}: only the type is enforced")
                continue
            odd = [value for value in values if not _can_be_spelled(value, 0)]
            if odd:
                self.note(
                    path, keyword, Verdict.RELAXED, f"{str(odd[0])[:60]!r} cannot be spelled: only types are enforced"
                )
                continue
            kept = {literal_key(v): v for v in values if is_member(v, shape)}
            if len(kept) < len({literal_key(v) for v in values}):
                self.note(path, keyword, Verdict.EXACT, "without the values that the other keywords forbid")
            shape = (Literals(tuple(kept.values())),) if kept else NEVER
        return shape

    def _reference(self, uri: Any, path: Path, depth: int) -> Shape:
        found, target = self.refs.find(uri) if isinstance(uri, str) else (False, None)
        if not found:
            self.note(path, "$ref", Verdict.RELAXED, f"{uri!r:.80} is not in this document: any value")
            return ANY
        if target is True or target == {}:
            return ANY
        if not isinstance(target, dict):
            return self.read(target, path, depth)
        name = self._targets.get(id(target))
        if name is None:
            name = self._targets[id(target)] = f"r{len(self._targets)}"
            place = tuple(uri.partition("#")[2].split("/")[1:]) or ()
            self._sources[name] = (target, place, depth + 1)
        return (Ref(name),)

    def resolve(self, ref: Ref) -> Shape | None:
        """A definition's shape; None while it is being read, or when references chain too long."""
        if ref.name not in self.definitions:
            if self._open >= LIMITS.depth:
                return None
            self.definitions[ref.name] = None
            self._open += 1
            self.definitions[ref.name] = self.read(*self._sources[ref.name])
            self._open -= 1
        return self.definitions[ref.name]

    def read_definitions(self) -> dict[str, Shape]:
        """Every definition that what was read refers to, directly or through others."""
        while missing := self._sources.keys() - self.definitions.keys():
            for name in sorted(missing):
                self.resolve(Ref(name))
        return {name: ANY if shape is None else shape for name, shape in self.definitions.items()}

    def _combined(
        self, schema: Mapping[str, Any], keyword: str, shape: Shape, path: Path, depth: int, meeting: Meeting
    ) -> Shape:
        branches = schema[keyword]
        if not isinstance(branches, list) or not branches:
            self.note(path, keyword, Verdict.RELAXED, "not a list of schemas: ignored")
            return shape
        if len(branches) > LIMITS.branches:
            self.note(path, keyword, Verdict.RELAXED, f"{len(branches)} schemas, more than {LIMITS.branches}: ignored")
            return shape
        shapes = [self.read(branch, (*path, keyword, i), depth + 1) for i, branch in enumerate(branches)]
        if keyword == "allOf":
            for one in shapes:
                shape = meeting.both(shape, one)
            return shape
        if keyword == "oneOf" and not self._apart(shapes):
            self.note(path, keyword, Verdict.RELAXED, "read as anyOf: values of several branches are allowed")
        return meeting.both(shape, union(shapes))

    def _apart(self, shapes: list[Shape]) -> bool:
        """Whether no value can belong to two of the shapes; False if that is not plain to see."""
        if len(shapes) > 16:
            return False
        return all(self._disjoint(a, b, 0) for i, a in enumerate(shapes) for b in shapes[:i])

    def _disjoint(self, a: Shape, b: Shape, depth: int) -> bool:
        if depth > 3:
            return False
        for p in a:
            for q in b:
                if isinstance(p, Ref) or isinstance(q, Ref):
                    left = self.resolve(p) if isinstance(p, Ref) else (p,)
                    right = self.resolve(q) if isinstance(q, Ref) else (q,)
                    if left is None or right is None or not self._disjoint(left, right, depth + 1):
                        return False
                elif isinstance(p, Anything) or isinstance(q, Anything):
                    return False
                elif isinstance(p, Literals) or isinstance(q, Literals):
                    values, other = (p, q) if isinstance(p, Literals) else (q, p)
                    if any(is_member(v, (other,)) for v in values.values):  # type: ignore[union-attr]
                        return False
                elif isinstance(p, Number) and isinstance(q, Number):
                    if Meeting(self.resolve, lambda *_: None).both((p,), (q,)) != NEVER:
                        return False
                elif isinstance(p, Object) and isinstance(q, Object):
                    names = p.required & q.required & p.properties.keys() & q.properties.keys()
                    if not any(self._disjoint(p.properties[n], q.properties[n], depth + 1) for n in names):
                        return False
                elif type(p) is type(q):
                    return False
        return True

    def _without(self, schema: Mapping[str, Any], shape: Shape, path: Path) -> Shape:
        """`not`, where it speaks of types or of literals among literals."""
        if "not" not in schema:
            return shape
        refused = schema["not"]
        if refused is False:
            return shape
        if refused is True or refused == {}:
            return NEVER
        if isinstance(refused, dict) and refused.keys() <= {"const"} | {"enum", "description"}:
            gone = (Literals(tuple(refused.get("enum", [refused.get("const")]))),) if refused else NEVER
            if all(isinstance(part, Literals) for part in shape) and ("const" in refused or "enum" in refused):
                kept = [v for part in shape for v in part.values if not is_member(v, gone)]  # type: ignore[union-attr]
                return (Literals(tuple(kept)),) if kept else NEVER
        if isinstance(refused, dict) and refused.keys() == {"type"}:
            types = self._types(refused, path) or ()
            kinds = {"string": Text, "array": Array, "object": Object, "number": Number}
            if types and shape != ANY and "integer" not in types:
                rest = [p for p in shape if not any(isinstance(p, kinds[t]) for t in types if t in kinds)]
                parts: list[Any] = []
                for part in rest:
                    if isinstance(part, Literals):
                        kept = [v for v in part.values if _type_of(v) not in types]
                        parts += [Literals(tuple(kept))] if kept else []
                    else:
                        parts.append(part)
                if not any(isinstance(p, Ref) for p in parts):
                    return tuple(parts)
        self.note(path, "not", Verdict.RELAXED, "not enforced: xgrammar ignores it")
        return shape


def _plain(schema: Mapping[str, Any], path: Path) -> Shape | None:
    """The shape of a schema that names one scalar type and nothing else; None for others. Most schemas are such."""
    name = schema.get("type")
    if not isinstance(name, str) or name not in _SCALARS or not _BESIDE_SCALARS.isdisjoint(schema):
        return None
    if name == "string":
        return (Text(place=path),)
    if name == "boolean":
        return (BOOLEAN,)
    return (NULL,) if name == "null" else (Number(name == "integer", place=path),)


def _type_of(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _can_be_spelled(value: Any, depth: int) -> bool:
    """Whether xgrammar writes a literal as it is: whole numbers of 64 bits, finite fractions, Unicode text."""
    if depth > 8:
        return False
    if isinstance(value, str):
        return len(value) <= 4096 and not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, float):
        return math.isfinite(value) and (not value.is_integer() or abs(value) < 2**53)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, list):
        return len(value) <= 64 and all(_can_be_spelled(v, depth + 1) for v in value)
    if isinstance(value, dict):
        return len(value) <= 64 and all(
            isinstance(k, str) and _can_be_spelled(k, 0) and _can_be_spelled(v, depth + 1) for k, v in value.items()
        )
    return value is None
