"""One argument's value: where it ends, and its JSON as it comes.

A string is written without any escape, so a value may contain the markers that close it. What closes a value:

1. ``</arg_value>`` closes it only if the next thing, white space apart, is ``</tool_call>``, the end of the output, or
   ``<arg_key>KEY</arg_key>`` with ``<arg_value>`` after it (not needed if KEY is declared and still missing).
   Anywhere else it is text, like every other marker.
2. ``<arg_value>`` inside a value opens a pair of its own: the ``</arg_value>`` that belongs to it closes nothing.
   Of an array or object, instead, the brackets and strings tell: nothing inside them closes it. Where a string is
   allowed too, that holds as long as the text can still become JSON, and inside of JSON's strings only.
3. The last closer wins: if ``</arg_value></tool_call>`` is followed by text and then, within `AFTERTHOUGHT`
   characters and before the next ``<tool_call>``, by another ``</arg_value>``, the first one was text.
4. Where these rules leave a value open at the end of an output that the engine ended by itself, the reader goes back
   to the first place where the value may end: an ``</arg_value>`` that rules 2 and 3 took for text, a ``</tool_call>``
   with the end or ``<tool_call>`` after it, or ``<arg_key>`` with the name of an argument that is still missing. From
   there on rules 2 and 3 are off; if the end comes inside a value once more, the first such place closes any value.
5. Numbers, booleans and null contain no marker: any marker closes them.

Hence a value that contains ``</arg_value>`` comes back whole, except where it contains a text that reads exactly like
its own end and nothing after it shows otherwise; and so does one that contains ``<arg_value>``, except where a later
value has the ``</arg_value>`` that would belong to it. A grammar that forbids ``</arg_value>`` in values excludes both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from dynamo_structural_tags.allowed import Allowed
from dynamo_structural_tags.glm_format import CALL, CALL_END, KEY, KEY_END, MARKS, THINK_END, VALUE, VALUE_END
from dynamo_structural_tags.json_prefix import JsonPrefix
from dynamo_structural_tags.tape import Tail, Tape, Token, blank
from dynamo_structural_tags.value_sink import ValueSink
from dynamo_structural_tags.values import JsonDepth, Reading

__all__ = ["AFTERTHOUGHT", "ValueReader"]

#: How often the reader goes back from the end: the first time rules 2 and 3 end, the second time all but rule 1.
MOST_RETURNS = 2
#: Characters after a closed call in which another closer shows that the call was not closed.
AFTERTHOUGHT = 1024
_LONGEST_KEY = 4096

_Ahead = Generator[None, Token, tuple[list[Token], bool]]


class ValueReader:
    """Reads one value from behind its ``<arg_value>``, and gives back the marker after the one that closed it.

    missing: whether a key is a declared argument that the call does not have yet.
    write: takes the fragments of the value's JSON text.
    note: takes codes of notes.
    """

    def __init__(
        self,
        tape: Tape,
        allow: Allowed,
        missing: Callable[[str], bool],
        write: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._tape = tape
        self._missing = missing
        self._note = note
        self._sink = ValueSink(allow, write)
        self._json: JsonDepth | JsonPrefix | None = None
        kinds = allow.kinds()
        if kinds & {"object", "array"}:
            self._json = JsonPrefix() if "string" in kinds else JsonDepth()
        self._held: list[str] | None = None  # since the first place where the value may end by rule 4
        self.cut = False  # the output ended inside the value
        self.reading = Reading("")

    def read(self, first: str = "") -> Generator[None, Token, None]:
        """Read to the end of the value; `first` is text of it that was read already."""
        if first:
            self._text(first)
        if self._sink.scalar:
            yield from self._read_scalar()
            return
        pairs = 0  # <arg_value> in the value that are open
        while True:
            token = yield
            if token is None:
                self._end()
                return
            if token not in MARKS:
                self._text(token)
            elif token == VALUE_END:
                ahead, closes = yield from self._after_value_end()
                nested = ahead[-1] == CALL or self._nested(pairs)
                pairs = max(0, pairs - 1)
                if not closes:
                    self._text(token)
                elif nested and not self._tape.returns:
                    self._hold(token)
                elif ahead[-1] == CALL_END and not self._is_json() and not self._tape.returns:
                    self._tape.closed = True
                    tail, closes = yield from self._after_call_end()
                    self._tape.closed = False
                    ahead += tail
                    if not closes:
                        self._release()
                        self._hold(token)
                self._tape.again(ahead)
                if closes and (not nested or self._tape.returns):
                    self._close()
                    return
            elif token in (CALL_END, KEY):
                ahead, ends = yield from (self._call_follows() if token == CALL_END else self._header(declared=True))
                broken = ends and self._tape.returns == MOST_RETURNS
                self._tape.again([token, *ahead] if broken else ahead)
                if broken:
                    self._note("missing_value_close")
                    self._close()
                    return
                if ends:
                    self._hold(token)
                else:
                    self._text(token)
            else:
                pairs += token == VALUE
                self._text(token)

    def _read_scalar(self) -> Generator[None, Token, None]:
        while True:
            token = yield
            if token is None:
                self._end()
                return
            if token in MARKS:
                if token != VALUE_END:
                    self._note("missing_value_close")
                    self._tape.again([token])
                self._close()
                return
            self._text(token)

    def _after_value_end(self) -> _Ahead:
        """The tokens up to the one that decides by rule 1, and whether ``</arg_value>`` can close the value."""
        ahead: list[Token] = []
        while True:
            token = yield
            ahead.append(token)
            if token is None or token in (CALL_END, CALL):
                return ahead, True
            if token == KEY:
                header, found = yield from self._header(declared=False)
                return ahead + header, found
            if not blank(token) and not (isinstance(token, Tail) and CALL_END.startswith(token)):
                return ahead, False

    def _header(self, *, declared: bool) -> _Ahead:
        """The tokens behind ``<arg_key>``, and whether they begin an argument (a declared one that is missing)."""
        ahead: list[Token] = []
        key: list[str] = []
        length = 0
        while True:
            token = yield
            ahead.append(token)
            if token == KEY_END:
                break
            length += len(token or "")
            if token is None or token in MARKS or length > _LONGEST_KEY:
                return ahead, False
            key.append(token)
        if self._missing("".join(key)):
            return ahead, True
        while not declared:
            token = yield
            ahead.append(token)
            if token is None or not blank(token):
                return ahead, token == VALUE
        return ahead, False

    def _after_call_end(self) -> _Ahead:
        """The tokens up to the one that decides by rule 3, and whether the call stays closed."""
        ahead: list[Token] = []
        length = 0
        while length <= AFTERTHOUGHT:
            token = yield
            ahead.append(token)
            if token is None or token == CALL or (token == THINK_END and self._tape.record is not None):
                break
            if token == VALUE_END:
                return ahead, False
            length += len(token)
        return ahead, True

    def _call_follows(self) -> _Ahead:
        """The tokens behind ``</tool_call>``, and whether they are the end or another call."""
        ahead: list[Token] = []
        while True:
            token = yield
            ahead.append(token)
            if token is None or not blank(token):
                return ahead, token is None or token == CALL

    def _is_json(self) -> bool:
        """Whether the value is, so far, an array or object: then its brackets tell where it ends."""
        return self._json is not None and self._json.is_json

    def _nested(self, pairs: int) -> bool:
        """Whether what stands here is inside of the value, by rule 2."""
        return self._json.inside if self._json is not None and self._json.is_json else pairs > 0

    def _text(self, token: str) -> None:
        if self._json is not None:
            self._json.feed(token)
        if self._held is None:
            self._write(token)
        else:
            self._held.append(token)

    def _write(self, token: str) -> None:
        if token in (VALUE_END, CALL_END):
            self._note("marker_in_value")
        self._sink.text(token)
        if isinstance(self._json, JsonPrefix) and not self._json.possible:
            self._sink.no_json()

    def _hold(self, token: str) -> None:
        """Note a place where the value may end by rule 4, if it is the first; `token` is text until then."""
        if self._held is None:
            self._held = []
        self._text(token)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for token in held:
            self._write(token)

    def _close(self) -> None:
        self._release()
        self.reading = self._sink.close()

    def _end(self) -> None:
        """The output ended inside the value: go back by rule 4, or leave it cut."""
        if self._held is not None and self._tape.stopped and self._tape.returns < MOST_RETURNS:
            held, self._held = self._held, None
            self._tape.returns += 1
            if held[0] == VALUE_END:
                del held[0]
            else:
                self._note("missing_value_close")
            self._tape.again([*held, None])
            self._close()
            return
        self._release()
        self._sink.cut()
        self.cut = True
        self._tape.again([None])
