"""The capacity model against the published figures in exact arithmetic, and its cache against a plain one of tokens."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from mooncake_tier.plan import Agents, Group, Kept, PlanError, keep

GIB = 1 << 30


def _group(**changed: Any) -> Group:
    """A group of 8 GB200 (186 GB each) with 433 GiB of weights and fp8 rows of 3,115,008 bytes a block."""
    given = {
        "gpus": 8,
        "budget": int(173 * GIB * 0.92),
        "experts": 398 * GIB,
        "shared": 35 * GIB,
        "runtime": 6 * GIB,
        "exchange": 8 * GIB,
        "block_bytes": 3_115_008,
        "block_size": 64,
    }
    return Group(**given | changed)


def test_data_parallel_attention_keeps_about_five_times_the_tokens() -> None:
    """Published: 5x with DEP8. 159.16 - 54.125 - 6 GiB once, against 159.16 - 49.75 - 35 - 6 - 8 GiB eight times."""
    group = _group()
    budget = Fraction(173 * 92, 100)
    once, each = budget - Fraction(433, 8) - 6, budget - Fraction(398, 8) - 35 - 6 - 8

    assert group.tep_tokens == once * GIB // 3_115_008 * 64 == 2_184_768
    assert group.dep_rank_tokens == each * GIB // 3_115_008 * 64 == 1_332_672
    assert group.dep_tokens == 8 * 1_332_672
    assert group.ratio == pytest.approx(float(8 * each / once), rel=1e-4)  # blocks are whole
    assert 4.8 < group.ratio < 5.1


def test_what_is_whole_on_each_gpu_costs_the_difference_to_eight_times() -> None:
    assert _group(shared=0, exchange=0).ratio == 8
    without_exchange = _group(exchange=0)
    assert float(Fraction(80 * (15916 - 4975 - 3500 - 600), 159160 - 60125)) == pytest.approx(
        without_exchange.ratio, rel=1e-4
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gpus": 0}, "gpus=0"),
        ({"block_bytes": 1.5}, "block_bytes=1.5"),
        ({"shared": -1}, "shared=-1"),
        ({"budget": 50 * GIB}, "with tensor parallelism a GPU has -"),
        ({"shared": 120 * GIB}, "with data parallelism a GPU has -"),
    ],
)
def test_a_group_that_holds_no_kv_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _group(**changed)


def _agents(**changed: Any) -> Agents:
    return Agents(**{"sessions": 4, "prompt": 100, "append": 10, "turns": 3} | changed)


@pytest.mark.parametrize("changed", [{"sessions": 0}, {"prompt": 1.0}, {"append": 10**8}, {"turns": True}])
def test_agents_that_do_nothing_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(changed))):
        _agents(**changed)


def test_too_many_turns_are_refused() -> None:
    with pytest.raises(PlanError, match="1,000,000 turns"):
        _agents(sessions=1001, turns=1000)


def test_sizes_that_are_none_are_refused() -> None:
    for wrong in ((-1, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(PlanError, match="at least one rank"):
            keep(_agents(), *wrong)


def test_every_session_takes_its_turns_and_the_seed_fixes_the_order() -> None:
    order = _agents().order()

    assert sorted(order) == sorted((s, 100 + 10 * t) for s in range(4) for t in range(3))
    assert [turn for turn in order if turn[0] == 2] == [(2, 100), (2, 110), (2, 120)]
    assert order == _agents().order()
    assert any(order != _agents(seed=seed).order() for seed in range(1, 4))


def test_a_cache_that_holds_all_finds_whatever_was_there_before() -> None:
    """4 sessions x (100 + 110 + 120) tokens; of each, 100 and 110 were there before."""
    shares = keep(_agents(), 10_000, 1)

    assert (shares.prompts, shares.gpu, shares.tier, shares.recomputed) == (1320, 840, 0, 480)
    assert shares.hit_rate == shares.best == 840 / 1320


def test_a_cache_of_nothing_leaves_all_to_the_tier() -> None:
    shares = keep(_agents(), 0, 8, 10_000)

    assert (shares.gpu, shares.tier) == (0, 840)
    assert keep(_agents(), 0, 8).hit_rate == 0


def test_ranks_divide_the_sessions() -> None:
    """Two sessions of up to 120 tokens fit in 240, four do not."""
    assert keep(_agents(), 240, 2).hit_rate == keep(_agents(), 240, 2).best
    assert keep(_agents(), 240, 1).hit_rate < keep(_agents(), 240, 1).best


class TokenCache:
    """A plain cache of single tokens by last use, the ends of a prompt older than its beginning."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: list[tuple[int, int]] = []  # least recently used first

    def found(self, session: int) -> int:
        held = {place for one, place in self.tokens if one == session}
        return next((n for n in range(len(held) + 1) if n not in held), 0)

    def use(self, session: int, count: int) -> None:
        self.tokens = [token for token in self.tokens if token[0] != session]
        self.tokens += [(session, place) for place in reversed(range(count))]
        self.tokens = self.tokens[-self.capacity :] if self.capacity else []


@pytest.mark.parametrize("seed", range(20))
def test_the_cache_of_sessions_is_a_cache_of_tokens(seed: int) -> None:
    random_ = random.Random(seed)
    capacity = random_.randrange(0, 60)
    ours, plain = Kept(capacity), TokenCache(capacity)
    length = [random_.randrange(1, 20) for _ in range(6)]
    for _ in range(120):
        session = random_.randrange(6)
        assert ours.found(session) == plain.found(session)
        length[session] += random_.randrange(0, 4)
        ours.use(session, length[session])
        plain.use(session, length[session])
