"""A forced call that no tool can be called with is refused; it never becomes free text."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo_structural_tags.families import FAMILIES
from dynamo_structural_tags.grammar import build_tag

RUN = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
MARKER = {"type": "function", "function": {"name": "a<tool_call>b"}}
NAMED = {"type": "function", "function": {"name": "walk"}}
OTHERS = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("tools", "choice", "seen"),
    [
        ([], "required", "a call"),
        (None, "required", "its tools are none"),
        ([RUN], NAMED, "'walk'"),
        ([RUN], {"type": "tool", "name": "walk"}, "its tools are 'run'"),
        ([], {"type": "any"}, "a call"),
        ([RUN], OTHERS, "its tools are 'run'"),
        ([{"type": "web_search"}], "required", "its tools are none"),
        ([MARKER], "required", "'a<tool_call>b'"),
    ],
)
def test_a_forced_call_without_a_tool_is_refused(tools: Any, choice: Any, seen: str) -> None:
    with pytest.raises(ValueError, match="tool_choice asks for") as error:
        build_tag(tools, tool_choice=choice)

    assert seen in str(error.value)
    assert "send tool_choice 'auto'" in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_refuses_it(family: str) -> None:
    with pytest.raises(ValueError, match=f"in family {family}"):
        build_tag([RUN], family=family, tool_choice=NAMED)


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "allowed_tools", "mode": "auto", "tools": []}, None])
def test_nothing_is_refused_where_no_call_is_forced(choice: Any) -> None:
    assert build_tag([], tool_choice=choice)["type"] == "structural_tag"
