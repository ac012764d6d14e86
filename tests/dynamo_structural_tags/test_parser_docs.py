"""docs/structural_tags.md says what the parser does: its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_structural_tags import value_reader
from dynamo_structural_tags.parser import NOTES, OUTCOMES, parse_output

PAGE = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text(encoding="utf-8")


def _table(heading: str) -> dict[str, str]:
    """First and second column of the first table under a heading of the page."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize(("heading", "table"), [("Outcomes", OUTCOMES), ("Notes", NOTES)])
def test_the_page_lists_each_code_with_its_meaning(heading: str, table: dict[str, str]) -> None:
    assert _table(heading) == table


def test_the_page_and_the_reader_agree_on_the_look_ahead() -> None:
    assert f"{value_reader.AFTERTHOUGHT:,} characters" in PAGE


@pytest.mark.parametrize(
    ("engine", "rest", "client"),
    [
        ("stop", "<tool_call>f</tool_call>", "tool_calls"),
        ("eos", "<tool_call>f</tool_call>", "tool_calls"),
        (None, "<tool_call>f</tool_call>", "tool_calls"),
        ("stop", "<tool_call>f</tool_call><tool_call>f<arg_key>a", "length"),
        ("stop", "text", "stop"),
        ("length", "<tool_call>f</tool_call>", "length"),
        ("content_filter", "<tool_call>f</tool_call>", "content_filter"),
    ],
)
def test_finish_reasons_are_those_of_the_pages_table(engine: str | None, rest: str, client: str) -> None:
    output = parse_output("</think>" + rest, [{"function": {"name": "f"}}], finish_reason=engine)

    assert output.finish_reason == client


def test_the_parser_needs_the_standard_library_only() -> None:
    probe = "import dynamo_structural_tags.parser, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    bare = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    extra = set(process.stdout.split()) - {name.partition(".")[0] for name in bare.stdout.split()}

    assert extra - set(sys.stdlib_module_names) == {"dynamo_structural_tags"}
