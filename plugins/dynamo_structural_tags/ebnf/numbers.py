"""JSON numbers between bounds, as regular expressions of EBNF without recursion."""

from __future__ import annotations

from .rules import Rules, one_of

__all__ = ["SAFE_DIGITS", "fraction_range", "integer_range", "multiples"]

ANY_INTEGER = '("0" | "-"? [1-9] [0-9]*)'
# One digit before the point beside an exponent, which stays below 308: every such number is a finite double.
ANY_NUMBER = (
    '"-"? (("0" | [1-9] [0-9]*) ("." [0-9]+)? '
    '| [1-9] ("." [0-9]+)? [eE] ("-" [0-9]+ | "+"? ("30" [0-7] | [0-2]? [0-9]? [0-9])))'
)
#: Digits of an integer that 64 bits hold whatever they are.
SAFE_DIGITS = 18
_LEAST, _MOST = -(2**63), 2**63 - 1
_BIG = 10**15
_TINY = '[1-9] ("." [0-9]+)? [eE] "-" [0-9]* [1-9] [0-9]*'
_HUGE = '[1-9] ("." [0-9]+)? [eE] "+"? ("1" [6-9] | [2-9] [0-9] | [1-2] [0-9] [0-9] | "30" [0-7])'


def integer_range(low: int | None, high: int | None, *, long: bool = True) -> str:
    """Integers from `low` to `high`, both included; None for no bound. Neither leading zeros nor "-0".

    long: also those that 64 bits do not hold.
    """
    if not long:
        low, high = _LEAST if low is None else max(low, _LEAST), _MOST if high is None else min(high, _MOST)
    if low is None and high is None:
        return ANY_INTEGER
    choices = []
    if low is None or low < 0:
        least = 1 if high is None or high >= -1 else -high
        choices += ['"-" ' + text for text in _naturals(least, None if low is None else -low)]
    if high is None or high >= 0:
        choices += _naturals(max(0, low or 0) if low is not None else 0, high)
    return one_of(choices)


def _naturals(low: int, high: int | None) -> list[str]:
    """Numbers from `low` (not negative) to `high` by their digits."""
    if high is None:
        digits = len(str(low))
        return [*_naturals(low, 10**digits - 1), f"[1-9] {_digits(digits)} [0-9]*"]
    choices = []
    while low <= high:
        digits = len(str(low))
        top = min(high, 10**digits - 1)
        choices += _same_length(str(low), str(top))
        low = top + 1
    return choices


def _same_length(low: str, high: str) -> list[str]:
    """Digits from `low` to `high`, which have the same number of them."""
    if not low:
        return []
    if set(low) == {"0"} and set(high) == {"9"}:
        return [_digits(len(low))]
    if len(low) == 1:
        return [_digit(low, high)]
    if low[0] == high[0]:
        return [f'"{low[0]}" {rest}' for rest in _same_length(low[1:], high[1:])]
    choices, first, last = [], int(low[0]), int(high[0])
    if set(low[1:]) != {"0"}:
        choices += [f'"{first}" {rest}' for rest in _same_length(low[1:], "9" * (len(low) - 1))]
        first += 1
    tail = []
    if set(high[1:]) != {"9"}:
        tail = [f'"{last}" {rest}' for rest in _same_length("0" * (len(low) - 1), high[1:])]
        last -= 1
    if first <= last:
        choices.append(f"{_digit(str(first), str(last))} {_digits(len(low) - 1)}")
    return choices + tail


def _digit(low: str, high: str) -> str:
    return f'"{low}"' if low == high else f"[{low}-{high}]"


def _digits(count: int) -> str:
    return "[0-9]" if count == 1 else f"[0-9]{{{count}}}"


def fraction_range(low: int | None, high: int | None, *, long: bool = True, exponents: bool = True) -> str:
    """Numbers from `low` to `high`, whole bounds, both included, in the forms of Python's `repr`.

    A bound of 16 digits or more is left out: from there on `repr` writes exponents.
    long: also numbers without a point that 64 bits do not hold. exponents: also with an exponent.
    """
    low = None if low is not None and low <= -_BIG else low
    high = None if high is not None and high >= _BIG else high
    if (low is not None and low >= _BIG) or (high is not None and high <= -_BIG):
        low = high = None
    if low is None and high is None and long and exponents:
        return ANY_NUMBER
    choices = [integer_range(low, high, long=long)]
    fraction = '"." [0-9]+'
    if high is None or high > 0:
        choices += [f"{whole} {fraction}" for whole in _naturals(max(0, low or 0), None if high is None else high - 1)]
    if low is None or low < 0:
        least = 0 if high is None or high >= 0 else -high
        choices += [f'"-" {whole} {fraction}' for whole in _naturals(least, None if low is None else -low - 1)]
    if not exponents:
        return one_of(choices)
    above = (low is None or low <= 0) and (high is None or high >= 1)
    below = (low is None or low <= -1) and (high is None or high >= 0)
    choices += [_TINY] * above + ['"-" ' + _TINY] * below
    choices += [_HUGE] * (high is None) + ['"-" ' + _HUGE] * (low is None)
    return one_of(choices)


def multiples(rules: Rules, step: int) -> str:
    """Multiples of a natural number: an automaton over the remainders."""
    names = [rules.reserve() for _ in range(step)]
    for remainder, name in enumerate(names):
        moves = [f'"{digit}" {names[(10 * remainder + digit) % step]}' for digit in range(10)]
        rules.define(name, " | ".join([*moves, *(['""'] if remainder == 0 else [])]))
    first = " | ".join(f'"{digit}" {names[digit % step]}' for digit in range(1, 10))
    return f'("0" | "-"? ({first}))'
