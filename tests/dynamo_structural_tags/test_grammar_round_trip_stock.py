"""Random tools: what the grammar of `build_tag` allows, the parser reads back as valid calls; nothing valid is lost.

Texts are sampled through xgrammar's own mask, over single bytes and over tokens that span markers. `GRAMMAR_SAMPLES`
tries more tool lists, `GRAMMAR_SEED` starts elsewhere; benchmarks/tool_round_trip.py goes on for hours.
"""

from __future__ import annotations

import json
import os
import random
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from json_schemas import Judge
from round_trips import Counts, Sampler, round_trip, speaks_of
from token_matcher import single_bytes, words
from tool_lists import random_tools

from dynamo_structural_tags.grammar import build
from dynamo_structural_tags.ladder import Level

SAMPLES = int(os.environ.get("GRAMMAR_SAMPLES", "60"))
SEED = int(os.environ.get("GRAMMAR_SEED", "0"))


@pytest.fixture(scope="module", params=["single bytes", "tokens that span markers"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return Sampler(single_bytes() if request.param == "single bytes" else words())


def test_texts_of_the_grammar_come_back_as_valid_calls_and_valid_calls_are_texts_of_it(sampler: Sampler) -> None:
    counts = Counts()
    for seed in range(SEED, SEED + SAMPLES):
        round_trip(seed, sampler, counts, texts=3, values=4)

    assert counts.faults == []
    assert min(counts.exact, counts.complete) > SAMPLES // 8, counts
    assert counts.relaxed > 0, counts
    assert counts.cuts > 0


def test_a_call_that_breaks_another_keyword_than_the_relaxed_ones_is_a_fault() -> None:
    """The judge of the test above: a schema with one relaxed keyword, and values that break it or another one."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}, "b": {"type": "integer"}},
        "required": ["b"],
    }
    (tool,) = build([{"type": "function", "function": {"name": "t", "parameters": schema}}]).tools

    def told(value: object) -> list[bool]:
        return [speaks_of(tool, error) for error in Judge(schema).iter_errors(value)]

    assert told({"a": [1, 1], "b": 1}) == [True]
    assert told({"a": [1, 1]}) == [True, False]
    assert told({"b": "x"}) == [False]


def test_the_long_run_goes_on_where_it_stopped_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        run = import_module("tool_round_trip").main
    finally:
        del sys.path[0]
    state = tmp_path / "state.json"

    assert run(["--state", str(state), "--texts", "4", "--seconds", "60"]) == 0
    first = json.loads(state.read_text("utf-8"))
    assert run(["--state", str(state), "--texts", str(first["texts"] + 1), "--seconds", "60"]) == 0
    second = json.loads(state.read_text("utf-8"))

    assert 4 <= first["texts"] < second["texts"]
    assert first["next_seed"] < second["next_seed"]
    assert (first["faults"], second["faults"]) == ([], [])
    assert f"seeds 0 to {second['next_seed'] - 1}" in capsys.readouterr().out


def test_a_tool_at_the_full_level_is_what_random_schemas_give() -> None:
    levels = [tool.level for seed in range(20) for tool in build(random_tools(random.Random(seed))).tools]

    assert set(levels) == {Level.FULL}
    assert json.dumps(build(random_tools(random.Random(0))).tag)
