"""Beginnings of JSON, told from text that only looks like it: the oracle is Python's `json` with what may follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.json_prefix import JsonPrefix
from dynamo_structural_tags.values import MOST_NESTED

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def _follow(pieces: list[str]) -> JsonPrefix:
    prefix = JsonPrefix()
    for piece in pieces:
        prefix.feed(piece)
    return prefix


def _states(text: str) -> tuple[bool, bool, bool]:
    whole, single = _follow([text]), _follow(list(text))
    seen = [(one.possible, one.complete, one.in_string) for one in (whole, single)]
    assert seen[0] == seen[1]
    return seen[0]


def _is_container(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list) and text == text.strip()
    except ValueError:
        return False


@given(VALUES.filter(lambda value: isinstance(value, list | dict)), st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=200, deadline=None)
def test_every_beginning_of_json_may_become_json(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    for length in range(1, len(text)):
        possible, complete, _ = _states(text[:length])
        assert (possible, complete) == (True, False)
    assert _states(text) == (True, True, False)


@given(st.text(alphabet='[]{}",:\\ntrue1.e-u0 \n', max_size=14).map(lambda rest: "[" + rest))
@example('["\\u12')
@example("[01")
@example("[1.]")
@example("[tru]")
@example("[1 2]")
@example("[,]")
@example("[] ")
@example('{"a" "b"}')
@example('{"a":}')
@example("{1:2}")
@example("[1}")
@example('["\n"]')
@example('["\\x"]')
@settings(max_examples=400, deadline=None)
def test_what_is_complete_is_json_and_what_is_json_is_complete(text: str) -> None:
    assert _states(text)[1] == _is_container(text)


@pytest.mark.parametrize(
    "text",
    [
        " []",
        "x",
        '"',
        "1",
        "[a",
        "{a",
        "{<",
        "[<",
        "{]",
        "[}",
        '{"a",',
        '{"a":1 "',
        "[1,,",
        "[--",
        "[1e",
        "[nul",
        "[] x",
    ],
)
@pytest.mark.parametrize("after", ["</arg_value>"])
def test_a_marker_outside_of_a_string_ends_it(text: str, after: str) -> None:
    assert not _follow([text, after]).possible


def test_a_marker_inside_of_a_string_is_text_of_it() -> None:
    prefix = _follow(['[{"a": "', "</arg_value>", '\\"'])
    assert (prefix.possible, prefix.in_string) == (True, True)


def test_it_gives_up_where_the_reader_of_json_does() -> None:
    assert _follow(["[" * MOST_NESTED]).possible
    assert not _follow(["[" * (MOST_NESTED + 1)]).possible
