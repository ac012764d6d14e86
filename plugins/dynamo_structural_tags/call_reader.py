"""One call: its arguments, what is wrong with it, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Generator

from dynamo_structural_tags.allowed import STRING
from dynamo_structural_tags.events import NOTES, ArgumentsDelta, CallEnd, CallStart, Event, Note
from dynamo_structural_tags.glm_format import CALL, CALL_END, KEY, KEY_END, MARKS, THINK_END, VALUE, VALUE_END
from dynamo_structural_tags.offer import Offer
from dynamo_structural_tags.tape import Tail, Tape, Token, blank
from dynamo_structural_tags.value_reader import ValueReader
from dynamo_structural_tags.values import quoted

__all__ = ["CallReader", "outcome_of"]

_UNDECLARED = {"undeclared_tool", "tool_not_allowed"}
_INVALID = {"missing_argument", "unknown_argument", "wrong_type"}
_HARMLESS = {"marker_in_value"}


def outcome_of(codes: set[str]) -> str:
    """The outcome of a complete call with these notes."""
    if codes & _UNDECLARED:
        return "undeclared"
    if codes & _INVALID:
        return "invalid"
    return "recovered" if codes - _HARMLESS else "valid"


class CallReader:
    """Reads one call from behind its name and reports it; gives back what does not belong to it.

    cut: the output ended inside the call.
    abandoned: ``</think>`` came inside the call, outside of its values, while the reasoning was still open.
    """

    def __init__(self, tape: Tape, offer: Offer, index: int, name: str, emit: Callable[[Event], None]) -> None:
        self._tape = tape
        self._tool = offer.tools.get(name)
        self._index = index
        self._name = name
        self._emit = emit
        self._keys: set[str] = set()
        self._notes: dict[str, Note] = {}
        self.cut = False
        self.abandoned = False
        emit(CallStart(index, name))
        if objection := offer.objection(name):
            self.note(objection)

    def note(self, code: str, detail: str = "") -> None:
        """Add a note; one of each code is enough."""
        text = f"{self._name}: {NOTES[code]}{f' ({detail})' if detail else ''}"
        self._notes.setdefault(code, Note(code, text, self._index, self._name))

    def read(self) -> Generator[None, Token, None]:
        """Read the arguments up to the end of the call."""
        while True:
            token = yield
            if token is None:
                self._end()
                break
            if token == THINK_END and self._tape.record is not None:
                self.abandoned = True
                self._tape.again([token])
                return
            if token == KEY:
                yield from self._argument()
            elif token == CALL_END:
                break
            elif token == CALL:
                self.note("missing_call_close")
                self._tape.again([token])
                break
            elif not blank(token) and not isinstance(token, Tail):
                self.note("stray_markup")
        self._finish()

    def _argument(self) -> Generator[None, Token, None]:
        """Read a key and its value; a key that has no value is left out."""
        key = yield from self._key()
        if key is None:
            return
        if key in self._keys:
            self.note("duplicate_argument", _short(key))
        if self._tool is not None and self._tool.refuses(key):
            self.note("unknown_argument", _short(key))
        first = yield from self._value_open()
        if first is None:
            return
        self._write(f"{', ' if self._keys else '{'}{quoted(key)}: ")
        self._keys.add(key)
        allow = self._tool.allowed(key) if self._tool is not None else STRING
        value = ValueReader(self._tape, allow, self._missing, self._write, self.note)
        yield from value.read(first)
        self.cut = self.cut or value.cut
        if not value.reading.fits:
            self.note("wrong_type", _short(key))
        elif value.reading.repaired:
            self.note("value_repaired", _short(key))

    def _key(self) -> Generator[None, Token, str | None]:
        parts: list[str] = []
        while True:
            token = yield
            if token == KEY_END:
                break
            if token == VALUE:
                self.note("missing_key_close")
                self._tape.again([token])
                break
            if token is None or token in MARKS:
                self._broken(token)
                return None
            parts.append(token)
        key = "".join(parts)
        if self._tool is not None and not self._tool.declares(key) and self._tool.declares(key.strip()):
            return key.strip()
        return key

    def _value_open(self) -> Generator[None, Token, str | None]:
        """Up to the beginning of the value: text of it that was read already, None if there is no value."""
        while True:
            token = yield
            if token == VALUE:
                return ""
            if token == VALUE_END:
                self.note("missing_value_open")
                self._tape.again([token])
                return ""
            if token is None or token in MARKS:
                self._broken(token)
                return None
            if not blank(token):
                self.note("missing_value_open")
                return token.lstrip(" \t\r\n")

    def _broken(self, token: Token) -> None:
        """An argument stops before its value does begin."""
        self._tape.again([token])
        if token is None:
            self.cut = True
        else:
            self.note("stray_markup")

    def _missing(self, key: str) -> bool:
        return self._tool is not None and self._tool.declares(key) and key not in self._keys

    def _write(self, fragment: str) -> None:
        if fragment:
            self._emit(ArgumentsDelta(self._index, fragment))

    def _end(self) -> None:
        """The output ends between arguments: if the engine stopped and nothing is missing, the call is complete."""
        self._tape.again([None])
        complete = self._tape.stopped and (self._tool is None or self._tool.required <= self._keys)
        if complete and not self.cut:
            self.note("missing_call_close")
        else:
            self.cut = True

    def _finish(self) -> None:
        if self.cut:
            self.note("truncated_call")
        else:
            missing = self._tool.required - self._keys if self._tool is not None else set()
            if missing:
                self.note("missing_argument", ", ".join(map(_short, sorted(missing)[:5])))
            self._write("}" if self._keys else "{}")
        for note in self._notes.values():
            self._emit(note)
        outcome = "truncated" if self.cut else outcome_of(set(self._notes))
        self._emit(CallEnd(self._index, self._name, outcome))


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:80] + "..."
