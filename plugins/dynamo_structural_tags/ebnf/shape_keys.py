"""What tells shapes apart for whoever keeps what was written of them."""

from __future__ import annotations

from collections.abc import Mapping

from ..schema.shapes import Anything, Array, Literals, Number, Object, Ref, Shape, Text

__all__ = ["shape_key"]

Place = tuple[str | int, ...]


def shape_key(shape: Shape, base: Place, definitions: Mapping[str, Shape]) -> tuple[object, ...] | None:
    """A hashable key, the same for shapes of which the same is written and said; None if a shape contains itself.

    The order of keys and literals counts, whether a literal is 1, 1.0 or true, and where the messages about a part
    would point: from `base` on, if they are below it.
    """
    return _key(shape, base, definitions, ())


def _key(
    shape: Shape, base: Place, definitions: Mapping[str, Shape], names: tuple[str, ...]
) -> tuple[object, ...] | None:
    found: list[object] = []

    def keys(shapes: tuple[Shape, ...]) -> bool:
        below = [_key(one, base, definitions, names) for one in shapes]
        found.append(tuple(below))
        return None not in below

    for part in shape:
        match part:
            case Text(low, high, pattern, place):
                found.append(("text", low, high, pattern, _seen_from(base, place)))
            case Number(integer, low, high, low_open, high_open, step, place):
                found.append(("number", integer, low, high, low_open, high_open, step, _seen_from(base, place)))
            case Literals(values):
                found.append(("literals", repr(values)))
            case Array(prefix, rest, low, high):
                found.append(("array", low, high))
                if not keys((*prefix, rest)):
                    return None
            case Object(properties, required, rest, pattern, low, high):
                found.append(("object", tuple(properties), required, pattern, low, high))
                if not keys((*properties.values(), rest)):
                    return None
            case Ref(name):
                own = None if name in names else _key(definitions[name], base, definitions, (*names, name))
                if own is None:
                    return None
                found.append(("definition", own))
            case Anything():
                found.append("anything")
    return tuple(found)


def _seen_from(base: Place, place: Place) -> tuple[object, ...]:
    return place[len(base) :] if place[: len(base)] == base else ("#", *place)
