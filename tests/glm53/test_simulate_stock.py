"""Dynamo's own replay under `glm53.simulate`: what it is given is what it simulates, and what it cannot do."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glm53.cli import app
from glm53.deployment import load
from glm53.simulate.scenario import Scenario, baseline, job
from glm53.simulate.simulator import SimulationError, probe, replay
from glm53.simulate.timing import Speeds
from glm53.simulate.trace import Request, write

pytestmark = pytest.mark.skipif(
    find_spec("dynamo") is None, reason="ai-dynamo is not installed here: `make env` puts it into .venv"
)

GB200 = load(Path(__file__).parents[2] / "recipes" / "glm53-gb200-nvl72.yaml")
#: Tokens a second of the group of 8 ranks: 10 tokens a millisecond on each.
SPEEDS = Speeds(80_000.0, 10.0, ("", ""))


def _replay(folder: Path, scenario: Scenario, requests: list[Request], **engine: Any) -> list[dict[str, Any]]:
    """The records, in the trace's order of sessions and turns. engine: changes of prefill's."""
    described = job(GB200, scenario, SPEEDS, folder)
    described["prefill"]["engine"] |= engine
    write(requests, folder / "trace.jsonl")
    described |= {"trace": [str(folder / "trace.jsonl")], "trace_block": 64}
    found = replay(sys.executable, described, folder, "test", time.monotonic() + 120)
    records = [dict(zip(found["fields"], record, strict=True)) for record in found["records"]]
    return sorted(records, key=lambda one: (one["session_id"] or "", one["turn_index"]))


def _prompt(session: str, tokens: int, first: int, **when: float) -> Request:
    return Request(session, tokens, 3, tuple(range(first, first - (-tokens // 64))), **when)


def test_this_environment_has_the_release_that_was_tried() -> None:
    assert probe(sys.executable) == "1.6.1"


def test_steps_take_the_given_time_hits_are_whole_blocks_and_ranks_keep_in_step(tmp_path: Path) -> None:
    requests = [
        _prompt("cold", 20_000, 0, timestamp=0.0),
        _prompt("cold", 26_000, 0, delay=5_000.0),
        _prompt("other", 1_000, 10_000, timestamp=100.0),
    ]
    first, second, other = _replay(tmp_path, baseline(GB200).with_(tier=0), requests)

    # 20,000 tokens at 10 a millisecond, and a decode step of 10 ms for the first token.
    assert first["ttft_ms"] == pytest.approx(2_010)
    assert (first["reused_input_tokens"], first["itl_ms"]) == (0, pytest.approx(10))
    # Of the second turn's prompt all whole blocks of the first are there: 312 of 64 tokens.
    assert second["reused_input_tokens"] == 312 * 64
    assert second["ttft_ms"] == pytest.approx((26_000 - 312 * 64) / 10 + 10)
    # On another rank, but its group's step of 4,096 tokens is under way until 409.6 ms; the next one lasts as long.
    assert other["prefill_admit_ms"] == pytest.approx(409.6)
    assert other["first_token_ms"] == pytest.approx(819.2 + 10)


def test_half_the_chunk_halves_what_a_turn_waits_for_a_step(tmp_path: Path) -> None:
    waits = {}
    for chunk in (8192, 4096):
        requests = [_prompt("cold", 60_000, 0, timestamp=0.0), _prompt("other", 1_000, 10_000, timestamp=1.0)]
        _, other = _replay(tmp_path, baseline(GB200).with_(tier=0, chunk=chunk), requests)
        waits[chunk] = other["prefill_admit_ms"] - other["arrival_time_ms"]

    assert waits == {8192: pytest.approx(818.2), 4096: pytest.approx(408.6)}


def test_a_tensor_parallel_group_keeps_one_cache_and_a_data_parallel_one_many(tmp_path: Path) -> None:
    """Four prompts of 30,000 tokens come in turn, and a rank has room for one of them, not for two."""
    requests = [
        _prompt(
            f"s{n}",
            30_000 + 600 * turn,
            100_000 * n,
            **({"timestamp": n * 20_000.0} if turn == 0 else {"delay": 80_000.0}),
        )
        for n in range(4)
        for turn in range(3)
    ]
    base = baseline(GB200).with_(tier=0)
    hits = {
        name: sum(one["reused_input_tokens"] for one in _replay(tmp_path, scenario, requests, num_gpu_blocks=600))
        for name, scenario in (("tep", base.as_tensor_parallel), ("dep", base))
    }

    whole = 4 * (30_000 // 64 + 30_600 // 64) * 64
    assert hits["tep"] == 0
    assert hits["dep"] > whole / 2  # all of it, where the router's random first choices differ


def test_the_kv_router_sends_a_turn_to_its_blocks_and_round_robin_does_not(tmp_path: Path) -> None:
    requests = [
        _prompt("s", 30_000 + 600 * turn, 0, **({"timestamp": 0.0} if turn == 0 else {"delay": 100.0}))
        for turn in range(4)
    ]
    base = baseline(GB200).with_(tier=0)
    hits = {
        router: [one["reused_input_tokens"] for one in _replay(tmp_path, base.with_(router=router), requests)]
        for router in ("kv_router", "round_robin")
    }

    assert hits["kv_router"] == [0, 468 * 64, 478 * 64, 487 * 64]
    assert hits["round_robin"] == [0, 0, 0, 0]


def test_the_tier_gives_back_what_a_rank_evicted(tmp_path: Path) -> None:
    requests = [
        _prompt(f"s{n}", 30_000, 100_000 * n, **({"timestamp": n * 20_000.0} if turn == 0 else {"delay": 80_000.0}))
        for n in range(3)
        for turn in range(2)
    ]
    base = baseline(GB200).as_tensor_parallel
    without = _replay(tmp_path, base.with_(tier=0), requests, num_gpu_blocks=600)
    with_tier = _replay(tmp_path, base, requests, num_gpu_blocks=600)

    assert sum(one["reused_input_tokens"] for one in without) == 0
    again = [one for one in with_tier if one["turn_index"] == 1]
    assert {one["reused_input_tokens"] for one in again} == {468 * 64}
    assert all(one["first_admission_host_reused_input_tokens"] > 0 for one in again)


def test_a_tier_that_ranks_share_runs_under_round_robin_and_still_ends_replay_under_the_kv_router(
    tmp_path: Path,
) -> None:
    """The reason for one part a rank. When no error comes, Dynamo can simulate a pool: let the recipe's own be one."""
    requests = [
        _prompt(f"s{n}", 30_000, 100_000 * n, **({"timestamp": n * 20_000.0} if turn == 0 else {"delay": 80_000.0}))
        for n in range(3)
        for turn in range(2)
    ]
    base = baseline(GB200).with_(shared=True)

    with pytest.raises(SimulationError, match="Failed to find block"):
        _replay(tmp_path, base.as_tensor_parallel, requests, num_gpu_blocks=600)

    again = [
        one
        for one in _replay(tmp_path, base.with_(router="round_robin"), requests, num_gpu_blocks=600)
        if one["turn_index"] == 1
    ]
    assert {one["reused_input_tokens"] for one in again} == {468 * 64}  # on whatever rank


def test_a_prompt_that_no_rank_can_hold_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SimulationError):
        _replay(tmp_path, baseline(GB200).with_(tier=0), [_prompt("s", 30_000, 0, timestamp=0.0)], num_gpu_blocks=100)


def test_the_command_runs_on_the_recipe_and_the_trace(tmp_path: Path) -> None:
    options = ["--quick", "--only", "chunk,router", "--json", "--keep", str(tmp_path)]
    result = CliRunner().invoke(app, ["simulate", "recipes/glm53-gb200-nvl72.yaml", *options])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)

    assert data["dynamo"] == "1.6.1"
    assert [row["label"] for row in data["rows"]] == ["8192", "4096", "round robin", "KV router"]
    assert all(row["requests"] == 6 * 4 for row in data["rows"])  # the middle half of 8 turns
    described = json.loads((tmp_path / "dep8-1p4d-4096-kv_router-tier.job.json").read_text())
    assert (described["prefill"]["dp_size"], described["decode_groups"]) == (8, 4)


def test_a_trace_in_dynamos_own_test_data_is_replayed_as_it_is(tmp_path: Path) -> None:
    spec = find_spec("dynamo.replay")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "tests" / "data" / "mooncake_tiny.jsonl"
    options = ["--trace", str(path), "--only", "router", "--json"]
    result = CliRunner().invoke(app, ["simulate", "recipes/glm53-gb200-nvl72.yaml", *options])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["requests"] for row in data["rows"]} == {len(lines)}
    hits = {row["label"]: row["hit_rate"] for row in data["rows"]}
    assert 0 < hits["KV router"] <= data["best_hit_rate"] < 1
