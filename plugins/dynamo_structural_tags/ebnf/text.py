"""Strings by pattern and length, as they are or as JSON, none of them with a marker in it."""

from __future__ import annotations

from dataclasses import replace

from ..schema.charsets import ALL, CharSet, charset, minus
from ..schema.pattern_begin import not_beginning
from ..schema.pattern_tree import Alt, Anything, Chars, Node, Repeat, Seq
from ..schema.shapes import Text
from ..schema.typed import Note, settle_text
from ..schema.verdicts import Verdict
from .json_strings import BEHIND
from .markers import Markers
from .rules import Rules, char_class, one_of, quote
from .spelling import LESS, JsonSpelling, Spelling

__all__ = ["Texts", "json_literal"]

#: Characters of a broad set that are counted one by one: each is a state that the compiler checks all tokens against.
MOST_COUNTED = 8
_BROAD = 64
#: What JSON has outside of strings.
_OUTSIDE = " \t\r\n[]{},:+-.0123456789Eaeflnrstu"
#: What Python's `str.strip` removes, and the other control characters.
_BLANK = (
    *((0, 0x20), (0x7F, 0xA0), (0x1680, 0x1680), (0x2000, 0x200F), (0x2028, 0x202F)),
    *((0x205F, 0x205F), (0x3000, 0x3000)),
)


def json_literal(text: str, markers: Markers) -> str:
    """JSON text in which markers are escaped: no marker is in it but in its strings."""
    for word in markers.words:
        text = text.replace(word, word.replace(word[0], f"\\u{ord(word[0]):04x}"))
    return text


class Texts:
    """Writes the rules of strings."""

    def __init__(self, rules: Rules, markers: Markers) -> None:
        self.rules, self.markers = rules, markers
        self._raw, self._json = Spelling(rules, markers), JsonSpelling(rules, markers)

    def any_raw(self) -> str:
        """Any text."""
        return self._raw.run() or '""'

    def closed_raw(self) -> str:
        """Any text, by a rule apart, for the one place where it is known what follows."""
        return self.markers.run(self.rules, alone=True) or '""'

    def any_json(self, behind: str = BEHIND) -> str:
        """Any JSON string, quotes included. behind: as `json_strings.BEHIND`."""
        return self._string(ALL, empty=True, behind=behind)

    def not_json(self, brackets: str, whole: str) -> str:
        """Text that is not the beginning of an object or array, as far as their first character is in `brackets`.

        If it is in `whole`, too, the text may be a whole one, but none that ends inside of a string.
        """
        begins, outside = _set(brackets), _set(_OUTSIDE)
        other = self._raw.nonempty(minus(ALL, charset((*outside, *_set('"')))))
        choices = [f"{char_class(begins)} {char_class(outside)}* {other}"]
        if whole:
            choices.append(f"{char_class(_set(whole))} {char_class(outside)}*")
        return self.rules.add(" | ".join((self.unlike(brackets), *choices)))

    def unlike(self, beginnings: str) -> str:
        """Text that begins with none of these characters."""
        return self._any(self._raw, _set(beginnings))

    def raw(self, text: Text, strict: bool, note: Note) -> str:
        """A string as it is."""
        return self._text(settle_text(text, note), self._raw, strict, note)

    def raw_unlike(self, beginnings: str, text: Text, strict: bool, note: Note) -> str | None:
        """A string as it is that begins with none of these characters; None if there is none."""
        settled, barred = settle_text(text, note), _set(beginnings)
        if settled.pattern is not None:
            node = not_beginning(settled.pattern, barred)
            if node is None:
                return None
            settled = replace(settled, pattern=node)
        return self._text(settled, self._raw, strict, note, barred)

    def json(self, text: Text, strict: bool, note: Note, behind: str = BEHIND) -> str:
        """A JSON string, quotes included. behind: as `json_strings.BEHIND`."""
        settled = settle_text(text, note)
        if settled.pattern is None and settled.high != 0:
            self._note_lengths(settled, False, note)
            return self._string(ALL, empty=not settled.low, behind=behind)
        return self.rules.add(f'"\\"" {self._text(settled, self._json, strict, note)} "\\""')

    def other_key(self, names: tuple[str, ...]) -> str:
        """A JSON string that is none of `names`: it begins like none of them."""
        first = minus(ALL, self._first_letters(names))
        return self._string(first, empty="" not in names, behind=":")

    def _string(self, first: CharSet, *, empty: bool, behind: str) -> str:
        """A JSON string, quotes included, that begins with one of `first`."""
        whole = self._json.whole(first, empty=empty, behind=behind)
        if whole is not None:
            return self.rules.add(whole, alone=True)
        body = self._json.run() if first == ALL and empty else self._json.nonempty(first)
        if first != ALL and empty:
            body = self.rules.add(f'"" | {body}')
        return self.rules.add(f'"\\"" {body} "\\""')

    def other_raw_key(self, names: tuple[str, ...]) -> str:
        """As it is, a key that is none of `names`: it begins like none of them, nor with a blank, and has no "<"."""
        first = minus(ALL, charset([*self._first_letters(names), *_BLANK, *LESS]))
        body = f"{char_class(first)} {char_class(minus(ALL, LESS))}*"
        return self.rules.add(body if "" in names else f'"" | {body}')

    def other_word(self, names: tuple[str, ...], barred: str) -> str:
        """As it is, a key that is none of `names`: it begins like none of them, and has no blank and no `barred`."""
        return self.word(names, minus(ALL, charset((ord(char), ord(char)) for char in barred)))

    def word(self, names: tuple[str, ...], chars: CharSet) -> str:
        """As it is, a key of these characters but blanks that is none of `names`: it begins like none of them."""
        rest = minus(chars, charset(_BLANK))
        first = minus(rest, self._first_letters(names))
        return self.rules.add(f"{char_class(first)} {char_class(rest)}*")

    def _first_letters(self, names: tuple[str, ...]) -> CharSet:
        own = charset((ord(name[0]), ord(name[0])) for name in names if name)
        self.rules.first_letters.add(own)
        return charset((*own, *self.rules.taken))

    def _text(self, text: Text, spelling: Spelling, strict: bool, note: Note, barred: CharSet = ()) -> str:
        """A string of what `settle_text` made; where only its length counts, it begins with none of `barred`."""
        if text.pattern is None:
            return self._length(text, spelling, strict, note, barred)
        widened: list[str] = []
        node = self._cheap(text.pattern, widened)
        if self.markers.can_occur(node):
            note("pattern", Verdict.RELAXED, "not enforced: it allows a text that would end the value")
            return self._any(spelling, barred)
        if widened:
            note("pattern", Verdict.RELAXED, f"enforced without {', '.join(dict.fromkeys(widened))}")
        return self.rules.add(_write(node, spelling))

    def _any(self, spelling: Spelling, barred: CharSet) -> str:
        if barred:
            return self.rules.add(f'"" | {spelling.nonempty(minus(ALL, barred))}')
        return spelling.run() or '""'

    def _length(self, text: Text, spelling: Spelling, strict: bool, note: Note, barred: CharSet) -> str:
        if text.high == 0:
            return '""'
        counted = strict and spelling is self._raw
        self._note_lengths(text, counted, note)
        body = spelling.nonempty(minus(ALL, barred)) if text.low else self._any(spelling, barred)
        return self.rules.add(body, most_characters=text.high) if counted and text.high is not None else body

    def _note_lengths(self, text: Text, counted: bool, note: Note) -> None:
        if text.low > 1:
            why = "the compiler takes long to count characters"
            note("minLength", Verdict.RELAXED, f"{text.low} is enforced as 1: {why}")
        if text.high is not None and not counted:
            note("maxLength", Verdict.RELAXED, "not enforced: only for strict tools, and not inside of JSON")

    def _cheap(self, node: Node, widened: list[str]) -> Node:
        """The tree without counts that cost too much, or that leave room for a marker."""
        match node:
            case Seq(items):
                return Seq(tuple(self._cheap(item, widened) for item in items))
            case Alt(items):
                return Alt(tuple(self._cheap(item, widened) for item in items))
            case Repeat(Chars() | Anything() as item, low, high):
                chars = _chars(item)
                spells = self.markers.spells_runs(chars)
                broad = spells or sum(b - a + 1 for a, b in chars) > _BROAD
                if (broad and max(low, high or 0) > MOST_COUNTED) or (spells and high is None and low > 1):
                    widened.append(f"the count {{{low},{'' if high is None else high}}}")
                    return Repeat(item, min(low, 1), None)
            case Repeat(item, low, high):
                return Repeat(self._cheap(item, widened), low, high)
        return node


def _set(chars: str) -> CharSet:
    return charset((ord(char), ord(char)) for char in chars)


def _chars(item: Chars | Anything) -> CharSet:
    return ALL if isinstance(item, Anything) else item.chars


def _write(node: Node, spelling: Spelling) -> str:
    match node:
        case Chars() | Anything():
            return spelling.char(_chars(node))
        case Seq(items):
            return " ".join(_joined(items, spelling)) or '""'
        case Alt(items):
            return one_of(_write(item, spelling) for item in items)
        case Repeat(Chars() | Anything() as item, low, None) if spelling.markers.spells_runs(_chars(item)):
            run = spelling.run(_chars(item))
            if run is not None:
                return run if low == 0 else spelling.nonempty(_chars(item), _chars(item))
        case Repeat(_, _, 0):
            return '""'
    assert isinstance(node, Repeat)
    count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    if count is None:
        count = (
            f"{{{node.low}}}" if node.low == node.high else f"{{{node.low},{'' if node.high is None else node.high}}}"
        )
    return f"({_write(node.item, spelling)}){count}"


def _joined(items: tuple[Node, ...], spelling: Spelling) -> list[str]:
    """One after the other; single characters as one literal."""
    written: list[str] = []
    literal = ""
    for item in items:
        if isinstance(item, Chars) and len(item.chars) == 1 and spelling.plain(item.chars) == item.chars:
            low, high = item.chars[0]
            if low == high:
                literal += chr(low)
                continue
        written += [quote(literal)] * bool(literal) + [_write(item, spelling)]
        literal = ""
    return written + [quote(literal)] * bool(literal)
