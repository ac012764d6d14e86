"""Keys of one object in any order: each at most once, required ones always.

A state is the set of keys so far, so the states double with each key: up to `MOST_ANY_ORDER` keys in any order,
beyond that in the schema's order, required ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .rules import Rules, one_of

__all__ = ["MOST_ANY_ORDER", "Entries", "Entry"]

#: Keys of one object that may come in any order: 2**5 states.
MOST_ANY_ORDER = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule for a key with its value, and whether the object needs it."""

    rule: str
    required: bool


@dataclass(frozen=True, slots=True)
class Entries:
    """What an object is made of.

    other: rule for a key that is not declared, any number of times; None if there are none.
    separator: between two entries.
    low, high: number of entries; held only up to `MOST_ANY_ORDER` declared keys, `other` ones counted each time.
    """

    declared: Sequence[Entry]
    other: str | None
    separator: str
    low: int = 0
    high: int | None = None

    @property
    def counted(self) -> bool:
        """Whether `low` and `high` are enforced."""
        return self.other is None and len(self.declared) <= MOST_ANY_ORDER

    def write(self, rules: Rules) -> str:
        """An expression for all entries with the separators between them; it may be empty."""
        if len(self.declared) <= MOST_ANY_ORDER:
            return self._any_order(rules)
        return self._schema_order(rules)

    def _any_order(self, rules: Rules) -> str:
        count = len(self.declared)
        needed = sum(1 << place for place, entry in enumerate(self.declared) if entry.required)
        after: dict[int, str] = {}  # by the keys so far: the rest of the object
        first = 0 if self.other is not None or not self.separator else 1
        # From the full set down, so that what a state leads to has its rule already.
        for state in sorted(range(first, 1 << count), key=int.bit_count, reverse=True):
            moves = self._moves(state, after, self.separator)
            if self.other is not None:
                after[state] = rules.reserve()
                moves.append(f"{self.separator} {self.other} {after[state]}")
            if state & needed == needed and (self.other is not None or state.bit_count() >= self.low):
                moves.append('""')
            body = " | ".join(moves) or '""'
            if self.other is None:
                after[state] = rules.add(body)
            else:
                rules.define(after[state], body)
        if not self.separator:
            return after[0]
        moves = self._moves(0, after, "")
        if self.other is not None:
            moves.append(f"{self.other} {after[0]}")
        if not needed and (self.other is not None or not self.low):
            moves.append('""')
        return rules.add(" | ".join(moves) or '""')

    def _moves(self, state: int, after: dict[int, str], separator: str) -> list[str]:
        """Each declared key that is not there yet, with what follows it."""
        return [
            f"{separator} {entry.rule} {after[state | 1 << place]}".strip()
            for place, entry in enumerate(self.declared)
            if not state >> place & 1 and self._leaves_room(state | 1 << place)
        ]

    def _leaves_room(self, state: int) -> bool:
        """Whether these keys and the required ones that are missing are not too many."""
        if self.other is not None or self.high is None:
            return True
        missing = sum(entry.required and not state >> place & 1 for place, entry in enumerate(self.declared))
        return state.bit_count() + missing <= self.high

    def _schema_order(self, rules: Rules) -> str:
        ordered = [e for e in self.declared if e.required] + [e for e in self.declared if not e.required]
        tails = [f"({self.separator} {self.other})*" if self.other is not None else '""']
        for entry in reversed(ordered):
            one = f"{self.separator} {entry.rule}".strip()
            tails.append(rules.add(f"{one if entry.required else f'({one})?'} {tails[-1]}"))
        tails.reverse()  # tails[i]: entry i and all after it, each with a separator before it
        if not self.separator:
            return tails[0]
        if ordered[0].required:
            return rules.add(f"{ordered[0].rule} {tails[1]}")
        starts = [f"{entry.rule} {tails[place + 1]}" for place, entry in enumerate(ordered)]
        if self.other is not None:
            starts.append(f"{self.other} {tails[-1]}")
        return rules.add(one_of([*starts, '""']))
