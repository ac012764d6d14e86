"""The generated agents' trace: its lengths, what prompts share, and that the seed fixes it; and reading real traces."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from glm53.simulate.trace import Agents, Request, TraceError, read, repeats, write

SMALL = Agents(
    sessions=5, prompt=1000, append=300, turns=4, rounds=9, output=20, tool_seconds=2, block=64, spread_seconds=10
)


def _by_agent(agents: Agents) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in agents.requests():
        found.setdefault(request.session, []).append(request)
    return found


def _tokens(request: Request, block: int) -> list[tuple[int, int]]:
    """The prompt as tokens, each told apart by its block's hash and its place in the block."""
    return [(request.hashes[i // block], i % block) for i in range(request.input)]


def _common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_each_turn_of_a_task_is_the_turn_before_and_what_was_appended() -> None:
    for turns in _by_agent(SMALL).values():
        for before, after in itertools.pairwise(turns):
            if after.input == 1000:  # a new task
                assert _common(_tokens(before, 64), _tokens(after, 64)) == 0
            else:
                assert after.input == before.input + 300
                assert _common(_tokens(before, 64), _tokens(after, 64)) == before.input


def test_a_task_has_its_turns_and_the_first_one_of_each_agent_is_already_under_way() -> None:
    for turns in _by_agent(SMALL).values():
        lengths = [turn.input for turn in turns]
        cycle = [1000, 1300, 1600, 1900]
        start = cycle.index(lengths[0])

        assert lengths == [cycle[(start + i) % 4] for i in range(9)]
        assert all(len(turn.hashes) == -(-turn.input // 64) for turn in turns)
        assert {turn.output for turn in turns} == {20}


def test_agents_share_what_all_prompts_begin_with_and_no_more() -> None:
    shared = replace(SMALL, shared=200)
    prompts = [turns[0] for turns in _by_agent(shared).values()]
    tasks = [turn for turns in _by_agent(shared).values() for turn in turns if turn.input == 1000]

    for one in prompts[1:]:
        assert _common(_tokens(prompts[0], 64), _tokens(one, 64)) == 3 * 64  # whole blocks of 200 tokens
    assert _common(_tokens(tasks[0], 64), _tokens(tasks[1], 64)) == 3 * 64
    assert not set(_by_agent(SMALL)["agent-0000"][0].hashes) & set(_by_agent(SMALL)["agent-0001"][0].hashes)


def test_the_seed_fixes_the_trace_and_another_seed_changes_it() -> None:
    assert list(SMALL.requests()) == list(SMALL.requests())
    assert list(SMALL.requests()) != list(replace(SMALL, seed=1).requests())


def test_more_agents_leave_the_others_as_they_are() -> None:
    more = _by_agent(replace(SMALL, sessions=9, spread_seconds=18))

    assert {name: more[name] for name in _by_agent(SMALL)} == _by_agent(SMALL)


def test_first_turns_arrive_evenly_and_further_ones_wait_for_a_tool() -> None:
    turns = _by_agent(SMALL)

    assert [one[0].timestamp for one in turns.values()] == [0.0, 2000.0, 4000.0, 6000.0, 8000.0]
    assert all(one[0].delay is None for one in turns.values())
    delays = [turn.delay for one in turns.values() for turn in one[1:]]
    assert None not in delays
    many = [turn.delay or 0.0 for turn in replace(SMALL, sessions=400).requests()]
    assert sum(many) / (400 * 8) == pytest.approx(2000, rel=0.05)  # the mean of 3,200 exponential delays
    assert {turn.delay for turn in replace(SMALL, tool_seconds=0.0).requests()} == {None, 0.0}


def test_the_longest_prompt_is_known_beforehand() -> None:
    assert SMALL.longest == 1900 + 20 == max(turn.input for turn in SMALL.requests()) + 20
    assert SMALL.tokens >= sum(turn.input for turn in SMALL.requests())


def test_repeated_tokens_are_those_that_an_earlier_prompt_began_with() -> None:
    requests = [
        Request("a", 200, 1, (1, 2, 3, 4), timestamp=0.0),  # 3 whole blocks of 64, and 8 tokens
        Request("a", 260, 1, (1, 2, 3, 4, 5), delay=0.0),  # all 200 come again
        Request("b", 128, 1, (9, 2), timestamp=0.0),  # 2 comes after 9, so it is another block
        Request("c", 192, 1, (1, 2, 7), timestamp=0.0),
        Request("d", 194, 1, (1, 2, 3, 4), timestamp=0.0),  # the fourth is longer by now
    ]

    assert repeats(requests, 64) == (200 + 260 + 128 + 192 + 194, 200 + 128 + 194)


def test_the_turns_before_the_measured_ones_count_as_seen() -> None:
    requests = [
        Request("a", 128, 1, (1, 2), timestamp=0.0),
        Request("a", 192, 1, (1, 2, 3), delay=0.0),
        Request("a", 192, 1, (1, 2, 3), delay=0.0),
    ]

    assert repeats(requests, 64, range(1, 2)) == (192, 128)
    assert (SMALL.measured, replace(SMALL, rounds=16).measured) == (range(2, 7), range(4, 12))


def test_of_the_generated_trace_all_but_new_tokens_repeat() -> None:
    """A task's first prompt is new, and of each further one what was appended; nothing else is."""
    total, again = repeats(SMALL.requests(), 64)
    new = 0
    for turns in _by_agent(SMALL).values():
        new += turns[0].input + sum(1000 if turn.input == 1000 else 300 for turn in turns[1:])

    assert (total, again) == (sum(turn.input for turn in SMALL.requests()), total - new)


def test_what_is_written_is_read_back_and_has_mooncakes_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    assert write(SMALL.requests(), path) == 45
    assert read(path, 64) == list(SMALL.requests())
    first, second = map(json.loads, path.read_text().splitlines()[:2])
    assert set(first) == {"session_id", "timestamp", "input_length", "output_length", "hash_ids"}
    assert set(second) == {"session_id", "delay", "input_length", "output_length", "hash_ids"}


def test_a_line_of_mooncakes_own_traces_is_a_session_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    line = {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2366]}
    path.write_text(f"{json.dumps(line)}\n\n{json.dumps(line | {'timestamp': 30535})}\n")

    assert read(path, 512) == [
        Request("line-1", 1030, 52, (46, 47, 2366), timestamp=27482.0),
        Request("line-3", 1030, 52, (46, 47, 2366), timestamp=30535.0),
    ]


def test_no_session_may_be_null_and_a_line_ends_only_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = {"session_id": None, "timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1]}
    texts = [json.dumps(line | {"session_id": one}, ensure_ascii=False) for one in (None, None, "a\u2028b")]
    path.write_text("\r\n".join(texts), encoding="utf-8")

    assert [one.session for one in read(path, 512)] == ["line-1", "line-2", "a\u2028b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "it holds a list"),
        ('{"input_length": 0}', "input_length=0 must be a whole number of at least 1"),
        ('{"input_length": 64, "output_length": true}', "output_length=True"),
        ('{"input_length": 64, "output_length": 1, "hash_ids": ["x"]}', "hash_ids must be a list of whole numbers"),
        ('{"input_length": 65, "output_length": 1, "hash_ids": [1]}', "blocks of 64 tokens are 2"),
        ('{"input_length": 64, "output_length": 1, "hash_ids": [1]}', "either a timestamp or a delay, not 0"),
        ('{"input_length": 64, "output_length": 1, "hash_ids": [1], "timestamp": 1, "delay": 1}', "not 2"),
        ('{"input_length": 64, "output_length": 1, "hash_ids": [1], "timestamp": -1}', "timestamp=-1"),
        ('{"session_id": "s", "input_length": 64, "output_length": 1, "hash_ids": [1], "delay": 1}', "no timestamp"),
        ('{"input_length": 64, "output_length": 1, "hash_ids": [18446744073709551616]}', "2\\*\\*64"),
        ('{"session_id": 5, "input_length": 64, "output_length": 1, "hash_ids": [1], "timestamp": 1}', "session_id=5"),
        (
            '{"session_id": "\\ud800", "input_length": 64, "output_length": 1, "hash_ids": [1], "timestamp": 1}',
            "must be text",
        ),
        ("", "it has no requests"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(line)

    with pytest.raises(TraceError, match=message):
        read(path, 64)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none.jsonl", 64)
    with pytest.raises(TraceError, match="not UTF-8"):
        read(tmp_path / "binary", 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sessions": 0}, "sessions=0: it must be a whole number from 1"),
        ({"prompt": 1.5}, "prompt=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"tool_seconds": float("nan")}, "tool_seconds=nan"),
        ({"shared": 1001}, "shared=1001 of prompt=1000"),
        ({"output": 301}, "output=301 append=300"),
        ({"sessions": 1_000_000, "rounds": 9}, "above 4,000,000,000"),
    ],
)
def test_work_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]
