"""What a pattern's tree matches: whole texts, in linear steps of all positions at once, and how long they are."""

from __future__ import annotations

from .pattern_reader import PatternError, read_pattern
from .pattern_tree import Alt, Anything, Chars, Node, Repeat, Search, Seq

__all__ = ["finds", "length_range", "matches"]


def _read(pattern: str) -> Search | None:
    try:
        return read_pattern(pattern)
    except (PatternError, RecursionError):
        return None


def finds(pattern: str, text: str) -> bool | None:
    """Whether a search for the pattern succeeds; None if that cannot be told."""
    search = _read(pattern)
    if search is None or len(text) > 1000:
        return None
    if not matches(search.node, text):
        return False
    return None if search.widened else True


def matches(node: Node, text: str) -> bool:
    """Whether the tree matches the whole text: positions advance together, so no pattern makes it exponential."""
    return len(text) in _ends(node, text, {0})


def _ends(node: Node, text: str, starts: set[int]) -> set[int]:
    match node:
        case Chars(chars):
            within = (i for i in starts if i < len(text))
            return {i + 1 for i in within if any(low <= ord(text[i]) <= high for low, high in chars)}
        case Anything():
            return {i + 1 for i in starts if i < len(text)}
        case Seq(items):
            for item in items:
                starts = _ends(item, text, starts)
            return starts
        case Alt(items):
            return set().union(*(_ends(item, text, starts) for item in items))
        case Repeat(Anything(), 0, None):
            return set(range(min(starts), len(text) + 1)) if starts else set()
        case Repeat(item, low, high):
            return _repeated_ends(item, low, high, text, starts)
    return starts


def _repeated_ends(item: Node, low: int, high: int | None, text: str, starts: set[int]) -> set[int]:
    for _ in range(low):
        after = _ends(item, text, starts)
        if after == starts:
            break
        starts = after
    reached, fresh = set(starts), set(starts)
    for _ in range(len(text) + 1 if high is None else high - low):
        fresh = _ends(item, text, fresh) - reached
        if not fresh:
            break
        reached |= fresh
    return reached


def length_range(node: Node) -> tuple[int, int | None]:
    """Fewest and most characters of a match; None for no bound."""
    match node:
        case Chars() | Anything():
            return 1, 1
        case Seq(items):
            parts = [length_range(item) for item in items]
            highs = [high for _, high in parts]
            return sum(low for low, _ in parts), None if None in highs else sum(h for h in highs if h is not None)
        case Alt(items):
            parts = [length_range(item) for item in items]
            highs = [high for _, high in parts]
            return min(low for low, _ in parts), None if None in highs else max(h for h in highs if h is not None)
        case Repeat(item, low, high):
            inner = length_range(item)
            if inner[1] == 0 or high == 0:
                return 0, 0
            return inner[0] * low, None if high is None or inner[1] is None else inner[1] * high
    return 0, 0
