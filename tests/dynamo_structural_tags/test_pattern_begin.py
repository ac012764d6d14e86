"""Patterns without the texts that begin with some characters: the oracle is Python's `re` over all short texts."""

from __future__ import annotations

import itertools
import re

import pytest

from dynamo_structural_tags.schema.charsets import charset
from dynamo_structural_tags.schema.pattern_begin import not_beginning
from dynamo_structural_tags.schema.pattern_matcher import matches
from dynamo_structural_tags.schema.pattern_reader import read_pattern

A = charset([(0x61, 0x61)])
TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product("abc", repeat=length)]
PATTERNS = [
    *("^a*b$", "^(a|b)c?$", "^(a*b*)*c$", "^(ab|ba){2}$", "^a?$", "a", "^[ab]{1,3}$", "^(a|)(b|)(c|)$"),
    *("^(a?b?){2,}$", "^.{2}$", "^(a?){3}b$", "c$", "^$"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_left_is_what_matches_and_begins_with_something_else(pattern: str) -> None:
    node = not_beginning(read_pattern(pattern).node, A)
    assert node is not None
    wanted = [text for text in TEXTS if re.search(pattern, text) and not text.startswith("a")]

    assert [text for text in TEXTS if matches(node, text)] == wanted


@pytest.mark.parametrize("pattern", ["^a", "^a+$", "^(a|ab)$", "^a{2}b*$"])
def test_nothing_is_left_of_a_pattern_that_begins_so(pattern: str) -> None:
    assert not_beginning(read_pattern(pattern).node, A) is None
