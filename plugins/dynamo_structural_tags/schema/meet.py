"""Intersection of shapes: what `allOf`, siblings of `$ref`, and unions below constraints come to."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from .shapes import ANY, NEVER, Anything, Array, Literals, Number, Object, Part, Ref, Shape, Text, is_member
from .verdicts import LIMITS

__all__ = ["Meeting"]


class Meeting:
    """Intersects shapes. `resolve(ref)` gives a definition, or None while it is being read.

    `relaxed(keyword, text)` is told of each constraint that an intersection had to leave out.
    """

    def __init__(self, resolve: Callable[[Ref], Shape | None], relaxed: Callable[[str, str], None]) -> None:
        self.resolve, self.relaxed = resolve, relaxed
        self.steps = 0

    def both(self, a: Shape, b: Shape, depth: int = 0) -> Shape:
        """Values of both shapes, or more where a limit is met."""
        if a in (ANY, b):
            return b
        if b == ANY:
            return a
        if a == NEVER or b == NEVER:
            return NEVER
        self.steps += 1
        if depth > 8 or self.steps > LIMITS.nodes:
            self.relaxed("allOf", "constraints that meet too deep inside each other: the later one is not enforced")
            return a
        a, b = self._opened(a, b), self._opened(b, a)
        if ANY in (a, b):
            return b if a == ANY else a
        if len(a) * len(b) > 4 * LIMITS.branches:
            self.relaxed("allOf", f"{len(a)} alternatives meet {len(b)}: the later ones are not enforced")
            return a
        parts: list[Part] = []
        for p in a:
            for q in b:
                for part in self._parts(p, q, depth):
                    if part not in parts:
                        parts.append(part)
        return tuple(parts)

    def _opened(self, shape: Shape, other: Shape) -> Shape:
        """Definitions in place of references, unless both sides are the same reference."""
        out: list[Part] = []
        for part in shape:
            if isinstance(part, Ref) and part not in other:
                found = self.resolve(part)
                if found is None or any(isinstance(p, Ref) for p in found):
                    self.relaxed(
                        "$ref",
                        "a constraint on a schema that refers to itself: the constraint next to the "
                        "reference is not enforced"
                        if found
                        else "a schema that is only itself: ignored",
                    )
                    return ANY
                out += found
            else:
                out.append(part)
        return tuple(out)

    def _parts(self, p: Part, q: Part, depth: int) -> Shape:
        if isinstance(p, Anything):
            return (q,)
        if isinstance(q, Anything) or p == q:
            return (p,)
        if isinstance(p, Ref) or isinstance(q, Ref):
            return (p,) if isinstance(p, Ref) and isinstance(q, Ref) and p == q else NEVER
        if isinstance(p, Literals) or isinstance(q, Literals):
            values, other = (p, q) if isinstance(p, Literals) else (q, p)
            assert isinstance(values, Literals)
            kept = tuple(v for v in values.values if is_member(v, (other,)))
            return (Literals(kept),) if kept else NEVER
        match p, q:
            case Number(), Number():
                return self._numbers(p, q)
            case Text(), Text():
                return self._texts(p, q)
            case Array(), Array():
                return self._arrays(p, q, depth)
            case Object(), Object():
                return self._objects(p, q, depth)
        return NEVER

    def _numbers(self, p: Number, q: Number) -> Shape:
        low, low_open = _tighter((p.low, p.low_open), (q.low, q.low_open), 1)
        high, high_open = _tighter((p.high, p.high_open), (q.high, q.high_open), -1)
        step = p.step or q.step
        if p.step and q.step and p.step != q.step:
            if (p.step / q.step).denominator == 1 or (q.step / p.step).denominator == 1:
                step = max(p.step, q.step)
            else:
                self.relaxed("multipleOf", f"two of them, {p.step} and {q.step}: only the first is enforced")
        number = Number(p.integer or q.integer, low, high, low_open, high_open, step, q.place or p.place)
        return NEVER if is_empty_range(number) else (number,)

    def _texts(self, p: Text, q: Text) -> Shape:
        low, high = max(p.low, q.low), _least(p.high, q.high)
        if high is not None and low > high:
            return NEVER
        first = p if p.pattern is not None else q
        if p.pattern is not None and q.pattern is not None and p.pattern != q.pattern:
            self.relaxed("pattern", "two patterns for one string: only the first is enforced")
        return (Text(low, high, first.pattern, first.place or q.place),)

    def _arrays(self, p: Array, q: Array, depth: int) -> Shape:
        low, high = max(p.low, q.low), _least(p.high, q.high)
        size = max(len(p.prefix), len(q.prefix))
        prefix = tuple(self.both(_place(p, i), _place(q, i), depth + 1) for i in range(size))
        array = Array(prefix, self.both(p.rest, q.rest, depth + 1), low, high)
        return NEVER if high is not None and low > high else (array,)

    def _objects(self, p: Object, q: Object, depth: int) -> Shape:
        names = dict.fromkeys((*p.properties, *q.properties))
        properties = {}
        for name in names:
            properties[name] = self.both(_value(p, name), _value(q, name), depth + 1)
        if p.keys is not None and q.keys is not None and p.keys != q.keys:
            self.relaxed("propertyNames", "two patterns for the names of other keys: only the first is enforced")
        low, high = max(p.low, q.low), _least(p.high, q.high)
        keys = p.keys if p.keys is not None else q.keys
        required = p.required | q.required
        rest = self.both(p.rest, q.rest, depth + 1)
        if (high is not None and max(low, len(required)) > high) or any(
            properties.get(name, rest) == NEVER for name in required
        ):
            return NEVER
        return (Object(properties, required, rest, keys, low, high),)


def _place(array: Array, index: int) -> Shape:
    return array.prefix[index] if index < len(array.prefix) else array.rest


def _value(part: Object, name: str) -> Shape:
    return part.properties.get(name, part.rest)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _tighter(
    a: tuple[Fraction | None, bool], b: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    if a[0] is None or b[0] is None:
        return b if a[0] is None else a
    if a[0] == b[0]:
        return a[0], a[1] or b[1]
    return a if (a[0] - b[0]) * sign > 0 else b


def is_empty_range(number: Number) -> bool:
    """Whether no number lies between the bounds."""
    if number.low is None or number.high is None:
        return False
    if number.integer:
        low = -(-number.low // 1) + (number.low_open and number.low.denominator == 1)
        high = number.high // 1 - (number.high_open and number.high.denominator == 1)
        return low > high
    return number.low > number.high or (number.low == number.high and (number.low_open or number.high_open))


def fits(node_range: tuple[int, int | None], low: int, high: int | None) -> bool:
    """Whether every match of a pattern has an allowed length already."""
    return low <= node_range[0] and (high is None or (node_range[1] is not None and node_range[1] <= high))
