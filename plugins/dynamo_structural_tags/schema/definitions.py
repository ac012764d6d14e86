"""The definitions of one document without empty references, and which of them some finite value satisfies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .shapes import ANY, Anything, Array, Literals, Number, Object, Part, Ref, Shape, Text
from .typed import settle_number
from .verdicts import Verdict

__all__ = ["Definitions"]


class Definitions:
    """Named shapes; `note` hears of those that refer only to themselves."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        strict: bool,
        note: Callable[[tuple[str | int, ...], str, Verdict, str], None],
    ) -> None:
        self.shapes, self.strict, self.note = dict(shapes), strict, note
        self._cut_aliases()
        self.inhabited: set[str] = set()
        self._find_inhabited()

    def opened(self, shape: Shape) -> Shape:
        """Definitions in place of references, as far as no reference is left."""
        parts: list[Part] = []
        seen: set[str] = set()
        queue = list(shape)
        while queue:
            part = queue.pop(0)
            if not isinstance(part, Ref):
                parts += [] if part in parts else [part]
            elif part.name not in seen:
                seen.add(part.name)
                queue = [*self.shapes[part.name], *queue]
        return tuple(parts)

    def has_values(self, shape: Shape) -> bool:
        """Whether some value has the shape."""
        return any(isinstance(part, Text | Anything) or self.part_has_values(part) for part in shape)

    def part_has_values(self, part: Part) -> bool:
        """Whether some value belongs to one part of a shape."""
        match part:
            case Ref(name):
                return name in self.inhabited
            case Array(prefix, rest, low, _):
                return all(
                    self.has_values(prefix[i] if i < len(prefix) else rest) for i in range(min(low, len(prefix) + 1))
                )
            case Object(properties, required, rest, _, low, _):
                if not all(self.has_values(properties.get(name, rest)) for name in required):
                    return False
                usable = sum(self.has_values(shape) for shape in properties.values()) if low else 0
                return low <= usable or self.has_values(rest)
            case Literals(values):
                return bool(values)
            case Number():
                return settle_number(part, self.strict, lambda *_: None) != Literals(())
        return True

    def _cut_aliases(self) -> None:
        """Drop references that lead back to their own definition with nothing between: they add no value."""
        for name in list(self.shapes):
            seen, queue = {name}, list(self.shapes[name])
            parts: list[Part] = []
            while queue:
                part = queue.pop(0)
                if not isinstance(part, Ref):
                    parts.append(part)
                elif part.name not in seen:
                    seen.add(part.name)
                    if self._reaches(part.name, name):
                        queue += self.shapes[part.name]
                    else:
                        parts.append(part)
            if len(seen) > 1 or any(isinstance(p, Ref) for p in self.shapes[name]):
                shape: Shape = tuple(parts)
                if not shape and self.shapes[name]:
                    self.note((), "$ref", Verdict.RELAXED, "a schema that refers only to itself: any value")
                    shape = ANY
                self.shapes[name] = shape

    def _reaches(self, start: str, goal: str) -> bool:
        seen, queue = {start}, [start]
        while queue:
            for part in self.shapes[queue.pop()]:
                if isinstance(part, Ref) and part.name not in seen:
                    if part.name == goal:
                        return True
                    seen.add(part.name)
                    queue.append(part.name)
        return False

    def _find_inhabited(self) -> None:
        """The least fixed point."""
        while more := {n for n, s in self.shapes.items() if n not in self.inhabited and self.has_values(s)}:
            self.inhabited |= more
