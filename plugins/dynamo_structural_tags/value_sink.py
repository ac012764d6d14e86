"""A value's JSON as its text comes: strings piece by piece, anything else when it is complete."""

from __future__ import annotations

from collections.abc import Callable

from dynamo_structural_tags.allowed import Allowed
from dynamo_structural_tags.values import Reading, could_be_other, escaped, quoted, read_value, utf8

__all__ = ["ValueSink"]


class ValueSink:
    """Writes one value's JSON text.

    scalar: whether the schema allows only numbers, booleans and null.
    is_string: whether it is certain that the value is a string; then its pieces are written as they come.
    """

    def __init__(self, allow: Allowed, write: Callable[[str], None]) -> None:
        kinds = allow.kinds()
        self._allow = allow
        self._write = write
        self._parts: list[str] = []
        self._head: str | None = "" if "string" in allow.types and not allow.values else None
        self.scalar = not kinds & {"string", "object", "array"}
        self.is_string = False
        if kinds == {"string"} and not allow.values:
            self._become_string("")

    def _become_string(self, head: str) -> None:
        self.is_string, self._head = True, None
        self._parts.clear()
        self._write('"' + escaped(head))

    def text(self, text: str) -> None:
        """Take more of the value."""
        if self.is_string:
            self._write(escaped(text))
            return
        self._parts.append(text)
        if self._head is not None:
            self._head += text
            if not could_be_other(self._head, self._allow.types):
                self._become_string(self._head)
            elif self._head[:1] in ("{", "["):
                self._head = None  # decided only by the whole text

    def no_json(self) -> None:
        """Take note that the text can become no array or object."""
        if self._head is None and not self.is_string and not self._allow.values:
            self._become_string("".join(self._parts))

    def close(self) -> Reading:
        """End the value."""
        if self.is_string:
            self._write('"')
            return Reading("")
        reading = read_value("".join(self._parts), self._allow)
        self._write(reading.json)
        return reading

    def cut(self) -> None:
        """Write what there is of a value that does not end."""
        text = "".join(self._parts)
        if text:
            self._write(quoted(text)[:-1] if "string" in self._allow.kinds() else utf8(text))
