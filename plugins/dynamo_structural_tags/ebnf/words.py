"""Names by their words, so that the compiler looks at a word once for all names that have it."""

from __future__ import annotations

import re

from .rules import Rules, quote

__all__ = ["spelled"]

#: A word with the separators in front of it: `max_size`, `maxSize` and `max-size` have two each.
_WORD = re.compile(r"[^A-Za-z0-9]*(?:[A-Z]*[a-z]+|[A-Z]+|[0-9]+|$)")


def spelled(rules: Rules, text: str, follower: str) -> str:
    """An expression for a name, not at the beginning of a rule. follower: the character behind it."""
    words = [word for word in _WORD.findall(text) if word]
    parts = []
    for word, behind in zip(words, [*words[1:], follower], strict=True):
        parts.append(rules.word(word, behind[0]) if len(word) > 1 else quote(word))
    return " ".join(parts) or '""'
