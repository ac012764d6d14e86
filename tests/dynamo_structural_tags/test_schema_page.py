"""docs/structural_tags.md against the code: the table of keywords, and the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_structural_tags.schema import LIMITS, normalise
from dynamo_structural_tags.schema.keywords import KEYWORDS, Keyword, table

PAGE = Path(__file__).parents[2] / "docs" / "structural_tags.md"


@pytest.mark.parametrize("row", KEYWORDS, ids=lambda row: row.name)
def test_each_keyword_has_the_verdict_that_the_table_gives(row: Keyword) -> None:
    found = normalise(row.example)

    assert found.verdict is row.verdict, found.messages


def test_the_page_holds_the_table_as_it_is_in_the_code() -> None:
    assert table() in PAGE.read_text("utf-8")


def test_the_page_names_every_limit_with_its_value() -> None:
    text = PAGE.read_text("utf-8")

    missing = [name for name in LIMITS.__slots__ if f"| `{name}` | {getattr(LIMITS, name)} |" not in text]
    assert missing == []
