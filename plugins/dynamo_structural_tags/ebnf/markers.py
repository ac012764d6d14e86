"""Text that must not contain some markers: runs without them, and whether a pattern can spell one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ..schema.charsets import ALL, CharSet, complement
from ..schema.pattern_tree import Alt, Anything, Chars, Node, Repeat, Seq
from .rules import Rules, one_of, quote

__all__ = ["Markers", "free_text"]

#: Characters outside of a set that one automaton still excludes one by one, beside those that JSON must escape.
MOST_EXCLUDED = 64


def free_text(
    rules: Rules,
    excluded: Iterable[str],
    calls: Iterable[tuple[str, str]] = (),
    loop: bool = False,
    *,
    alone: bool = False,
) -> str:
    """A rule for any text without the excluded ones; each of `calls` is a text, and the rule that must follow it.

    loop: whether the same may come again behind that.
    alone: a rule apart from equal ones.
    """
    excluded, calls = list(excluded), list(calls)
    begins = {text[0] for text, _ in calls}
    if any(char in begins for text in excluded for char in text[1:]):
        # What is excluded could lie across the end of the free text.
        return _dispatch(rules, excluded, [(text, rules.add(rule, alone=True)) for text, rule in calls], loop)
    free = _dispatch(rules, [*excluded, *(text for text, _ in calls)], alone=alone)
    if not calls:
        return free
    # Not as one dispatch: what the compiler finds out about a rule that refers to no other is kept.
    name = rules.reserve()
    again = f" {name}" if loop else ""
    rules.define(name, f"{free} ({one_of(f'{quote(text)} {rule}{again}' for text, rule in calls)})?")
    return name


def _dispatch(
    rules: Rules,
    excluded: Iterable[str],
    calls: Iterable[tuple[str, str]] = (),
    loop: bool = False,
    alone: bool = False,
) -> str:
    parts = [f"({quote(text)}, {rule})" for text, rule in calls]
    parts += [f"loop_after_dispatch={str(loop).lower()}", f"excludes=({', '.join(map(quote, excluded))})"]
    return rules.add(f"TagDispatch({', '.join(parts)})", alone=alone)


class Markers:
    """The texts that no value may contain. None has its first character a second time, or no other at all.

    firsts: these characters.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self.firsts = tuple(dict.fromkeys(word[0] for word in self.words))
        for word in self.words:
            if word.rfind(word[0]) != 0 and len(set(word)) > 1:
                raise ValueError(f"marker={word!r}: what keeps it out of texts needs its only {word[0]!r} in front")

    @property
    def simple(self) -> bool:
        """Whether `runs.Run` can exclude them: they are of ASCII, and begin with the same character."""
        return len(self.firsts) < 2 and all(word.isascii() and word.rfind(word[0]) == 0 for word in self.words)

    def inside(self, text: str) -> bool:
        """Whether the text contains one of them."""
        return any(word in text for word in self.words)

    def run(self, rules: Rules, chars: CharSet = ALL, *, also: Iterable[str] = (), alone: bool = False) -> str | None:
        """A rule for any number of these characters, none of the markers in them; None if the set is too odd.

        also: more texts to exclude. alone: a rule apart from equal ones.
        """
        outside = complement(chars)
        if sum(high - low + 1 for low, high in outside) > MOST_EXCLUDED + 34:
            return None
        more = tuple(also)
        return rules.once(("run", self.words, chars, more, alone), lambda: self._run(rules, outside, more, alone))

    def _run(self, rules: Rules, outside: CharSet, also: tuple[str, ...], alone: bool) -> str:
        single = [chr(code) for low, high in outside for code in range(low, high + 1)]
        # A text with one of the characters in it cannot come anyway, and listed beside it, it would hide the character:
        # xgrammar looks for the longest text that may still be excluded, and not for others inside of that.
        words = [word for word in (*self.words, *also) if not any(char in word for char in single)]
        return free_text(rules, [*single, *words], alone=alone)

    def spells_runs(self, chars: CharSet) -> bool:
        """Whether repeating these characters can spell a marker, and a rule can exclude it: see `run`."""
        return _spells(self.words, chars)

    def can_occur(self, node: Node) -> bool:
        """Whether a match may contain a marker, if its unbounded runs of characters hold none by themselves."""
        return _can_occur(self.words, node)


@lru_cache(4096)
def _spells(words: tuple[str, ...], chars: CharSet) -> bool:
    if sum(high - low + 1 for low, high in complement(chars)) > MOST_EXCLUDED:
        return False
    return any(all(_has(chars, c) for c in word) for word in words)


@lru_cache(4096)
def _can_occur(words: tuple[str, ...], node: Node) -> bool:
    return any(_Search(word).found(node) for word in words)


class _Search:
    """A marker's automaton (state: characters of it that the text ends with), run over all texts of a tree at once."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.hit = False

    def _excludes(self, item: Chars | Anything) -> bool:
        return _spells((self.word,), item.chars if isinstance(item, Chars) else ALL)

    def found(self, node: Node) -> bool:
        self._after(node, frozenset((0,)))
        return self.hit

    def _after(self, node: Node, states: frozenset[int]) -> frozenset[int]:
        match node:
            case Chars(chars):
                return self._step(chars, states)
            case Anything():
                return self._step(ALL, states)
            case Seq(items):
                for item in items:
                    states = self._after(item, states)
                return states
            case Alt(items):
                return frozenset().union(*(self._after(item, states) for item in items))
            case Repeat(Anything() | Chars() as item, low, None) if self._excludes(item):
                return self._run(item.chars if isinstance(item, Chars) else ALL, low, states)
            case Repeat(item, low, high):
                return self._repeated(item, low, high, states)
        return states

    def _step(self, chars: CharSet, states: frozenset[int]) -> frozenset[int]:
        after: set[int] = set()
        for state in states:
            wanted = self.word[state]
            if _has(chars, wanted):
                self.hit = self.hit or state + 1 == len(self.word)
                after.add((state + 1) % len(self.word))
            if _has(chars, self.word[0]):
                after.add(1)
            if any(not (low == high and chr(low) in (wanted, self.word[0])) for low, high in chars):
                after.add(0)
        return frozenset(after)

    def _run(self, chars: CharSet, low: int, states: frozenset[int]) -> frozenset[int]:
        """A run excludes markers within itself, so only one that began before it can be completed in it."""
        for state in states:
            if state and all(_has(chars, c) for c in self.word[state:]):
                self.hit = True
        reached = frozenset(range(len(self.word))) if _has(chars, self.word[0]) else frozenset((0,))
        return reached if low else reached | states

    def _repeated(self, item: Node, low: int, high: int | None, states: frozenset[int]) -> frozenset[int]:
        for _ in range(min(low, 2 * len(self.word))):
            states = self._after(item, states)
        reached = states
        for _ in range(2 * len(self.word) if high is None else min(high - low, 2 * len(self.word))):
            states = self._after(item, states) | reached
            if states == reached:
                break
            reached = states
        return reached


def _has(chars: CharSet, char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in chars)
