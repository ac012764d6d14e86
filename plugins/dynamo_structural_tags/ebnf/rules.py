"""Rules of one grammar by name; equal bodies share one rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..schema.charsets import ALL, CharSet, charset, complement, utf8_blocks

__all__ = ["Rules", "char_class", "one_of", "quote"]

#: Literals of EBNF escape it, so that in a body it stands for nothing but the ends of a rule's name.
_MARK = "@"
_UNPLAIN = re.compile(r"[^ !#-?A-\[\]-~]")
#: A body is written out where it is used once, up to this length: the compiler's time grows with the number of
#: rules times the number of states, and with the square of a rule's own length.
LONGEST_INLINED = 1500
_QUANTIFIERS = ("*", "+", "?", "{")


def quote(text: str) -> str:
    """A literal of EBNF. A lone surrogate cannot be in one (ValueError)."""
    if text.isascii() and _UNPLAIN.search(text) is None:
        return f'"{text}"'
    text.encode("utf-8")
    return '"' + _UNPLAIN.sub(lambda match: _escape(ord(match[0])), text) + '"'


def char_class(chars: CharSet) -> str:
    """A class of EBNF: one character of the set, which is not empty.

    Negative classes hold ASCII only, and other ranges come in the pieces that xgrammar gets right.
    """
    if chars == ALL:
        return "[\\u0000-\\U0010ffff]"
    gaps = complement(chars)
    if gaps and gaps[-1][1] < 0x80:
        return "[^" + _ranges(gaps) + "]"
    return "[" + _ranges(tuple(block for low, high in chars for block in utf8_blocks(low, high))) + "]"


def one_of(choices: Iterable[str]) -> str:
    """Alternatives in brackets; a single one as it is."""
    kept = list(dict.fromkeys(choices))
    return kept[0] if len(kept) == 1 else "(" + " | ".join(kept) + ")"


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in ranges)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(slots=True)
class _Rule:
    """A rule.

    options: what stands behind its name.
    kind: "alone" if it is never written out where it is used, "word" for those of `Rules.word`; only rules of one kind
    are taken for equal.
    recursive: it may refer to itself.
    followers: characters of which one always follows it, if that is known.
    part: the collection that the body is an expression over; None if it is this one.
    """

    body: str
    options: str = ""
    kind: str = ""
    recursive: bool = False
    followers: frozenset[str] = frozenset()
    part: Rules | None = None


class Rules:
    """Collects rules; `size` is their text so far, in characters.

    taken: characters that no undeclared key begins with; empty if each object may have its own.
    first_letters: those that undeclared keys do not begin with, one set for each kind of object so far.
    """

    def __init__(self, taken: CharSet = ()) -> None:
        self.taken = taken
        self.first_letters: set[CharSet] = set()
        self._rules: list[_Rule] = []
        self._names: dict[tuple[str, str, str], str] = {}
        self._made: dict[tuple[object, ...], str] = {}
        self._words: dict[str, tuple[str, _Rule]] = {}
        self._parts: dict[tuple[int, str], tuple[Rules, str]] = {}  # with the collections, whose ids stay theirs
        self.named: dict[str, str] = {}  # rules that refer to themselves, by what they are
        self.size = 0

    def add(self, body: str, *, most_characters: int | None = None, alone: bool = False) -> str:
        """The name of a rule with this body, at most so many characters long if asked; of a name, the name itself.

        alone: a rule of its own, whatever its body.
        """
        if most_characters is None and not alone and _is_name(body):
            return body
        options = "" if most_characters is None else f"[max_chars={most_characters}]"
        return self._add(body, options, "alone" if alone else "")

    def _add(self, body: str, options: str, kind: str) -> str:
        name = self._names.get((body, options, kind))
        if name is None:
            name = self._names[body, options, kind] = f"{_MARK}{len(self._rules)}{_MARK}"
            self._rules.append(_Rule(body, options, kind))
            self.size += len(body) + len(name) + 6
        return name

    def once(self, key: tuple[object, ...], make: Callable[[], str]) -> str:
        """What `make` returned when it was first called for this key."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found

    def part(self, other: Rules, expression: str) -> str:
        """A rule with the body `expression` over the rules of another collection, which nobody changes any more.

        They stay there until `include` takes over these rules: once for all collections with this part.
        """
        key = (id(other), expression)
        if key not in self._parts:
            self._rules.append(_Rule(expression, part=other))
            self._parts[key] = (other, f"{_MARK}{len(self._rules) - 1}{_MARK}")
            self.size += other.size
        return self._parts[key][1]

    def _taken(self, other: Rules, expression: str) -> str:
        """The name of a part's rule among these, whose parts it takes over."""
        key = (id(other), expression)
        if key not in self._parts:
            self._parts[key] = (other, self.add(self.include(other, expression)))
        return self._parts[key][1]

    def include(self, other: Rules, expression: str) -> str:
        """Take over the rules of another collection; returns an expression over its rules as one over these."""
        names: dict[str, str] = {}
        known = {name: self.named[key] for key, name in other.named.items() if key in self.named}
        for place, rule in enumerate(other._rules):
            if rule.recursive:
                name = f"{_MARK}{place}{_MARK}"
                names[str(place)] = known.get(name) or self.reserve()
        for place, rule in enumerate(other._rules):
            if rule.part is not None:
                names[str(place)] = self._taken(rule.part, rule.body)
            elif not rule.recursive:
                name = names[str(place)] = self._add(_renamed(rule.body, names), rule.options, rule.kind)
                if rule.followers:
                    self._rules[_place(name)].followers |= rule.followers
        for place, rule in enumerate(other._rules):
            if rule.recursive and f"{_MARK}{place}{_MARK}" not in known:
                self.define(names[str(place)], _renamed(rule.body, names))
        for key, name in other.named.items():
            self.named.setdefault(key, names[name.strip(_MARK)])
        self.first_letters |= other.first_letters
        return _renamed(expression, names)

    def mark(self, text: str) -> str:
        """A rule for a text of the format, which stays one: the compiler looks at its states once for all uses."""
        if len(text) < 2:
            return quote(text)
        return self.once(("mark", text), lambda: self._mark(text))

    def _mark(self, text: str) -> str:
        # xgrammar writes a rule out where it begins a sequence, unless the rule refers to another.
        return self.add(f"{quote(text[:-1])} {self.add(quote(text[-1]), alone=True)}", alone=True)

    def word(self, text: str, follower: str) -> str:
        """A rule for a text that is used in several places, or in one. follower: the character behind this use."""
        found = self._words.get(text)
        if found is None:
            name = self._add(quote(text), "", "word")
            found = self._words[text] = (name, self._rules[_place(name)])
        name, rule = found
        if follower not in rule.followers:
            rule.followers |= {follower}
        return name

    def reserve(self) -> str:
        """A new name, for a rule that `define` gives its body later: rules may refer to themselves."""
        self._rules.append(_Rule('""', kind="alone", recursive=True))
        return f"{_MARK}{len(self._rules) - 1}{_MARK}"

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._rules[_place(name)].body = body
        self.size += len(body) + len(name) + 6

    def text(self, first: Iterable[str]) -> str:
        """The whole grammar. first: its first rules, root among them, which may refer to all others."""
        for rule in list(self._rules):
            if rule.part is not None:
                rule.body, rule.part = self.include(rule.part, rule.body), None
        bodies = [rule.body.split(_MARK) for rule in self._rules]
        heads = [line.split(_MARK) for line in first]
        users: dict[str, list[int]] = {}
        for place, parts in enumerate((*bodies, *heads)):
            for name in parts[1::2]:
                users.setdefault(name, []).append(place)
        written: dict[str, str] = {}  # what stands in place of a rule's name
        lines = []
        for place, (rule, parts) in enumerate(zip(self._rules, bodies, strict=True)):
            name, body = str(place), _filled(parts, written)
            used = users.get(name, [])
            if len(used) == 1 and used[0] > place and _can_be_written_out(rule, body):
                written[name] = body
            elif used:
                lines.append(f"r{name}{rule.options} ::= {body}{_behind(rule.followers)}")
        return "\n".join([*(_filled(parts, written) for parts in heads), *lines]) + "\n"


def _behind(followers: frozenset[str]) -> str:
    """An assertion of what follows: xgrammar then sees which tokens that go beyond a rule's end cannot be."""
    return f" (={char_class(charset((ord(char), ord(char)) for char in followers))})" if followers else ""


def _is_name(body: str) -> bool:
    return body.startswith(_MARK) and body.endswith(_MARK) and body.count(_MARK) == 2


def _place(name: str) -> int:
    return int(name.strip(_MARK))


def _renamed(body: str, names: dict[str, str]) -> str:
    if _MARK not in body:
        return body
    parts = body.split(_MARK)
    parts[1::2] = [names[part] for part in parts[1::2]]
    return "".join(parts)


def _can_be_written_out(rule: _Rule, body: str) -> bool:
    return (
        rule.kind != "alone"
        and not rule.options
        and len(body) <= LONGEST_INLINED
        and "|" not in body
        and not body.startswith(("TagDispatch", "Regex"))
    )


def _filled(parts: list[str], written: dict[str, str]) -> str:
    """A body with names for its references, and what is written out in place of some."""
    filled = [*parts]
    for place in range(1, len(parts), 2):
        body = written.get(parts[place])
        if body is None:
            filled[place] = f"r{parts[place]}"
        else:
            filled[place] = f"({body})" if parts[place + 1].startswith(_QUANTIFIERS) else body
    return "".join(filled)
