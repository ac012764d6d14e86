"""The cluster planner against a search over all sizes and against FlashInfer 0.7.4's own rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest

from flashinfer_nvfp4.plan import INDEXER_ROW_BYTES, plan_clusters, row_bytes, token_bytes
from flashinfer_nvfp4.rowformat import ROW_BYTES

# Clusters that run at once, by size: measured on a GB200 (152 SMs) by FlashInfer's test of its own planner; a B300
# (148 SMs); and a made-up device on which a size is missing and another cannot run.
GB200 = {8: 15, 6: 23, 5: 28, 4: 36, 3: 46}
B300 = {8: 15, 6: 22, 5: 26, 4: 33, 3: 45}
ODD = {7: 0, 6: 5, 4: 9, 3: 9}
# The same with the sizes that a kernel of ours or FlashInfer's generated one also has.
WIDE = {**GB200, 2: 76, 1: 152}


def _stock_legal(topk: int, size: int) -> bool:
    """Each CTA of the stock op takes 3 to 32 stages of 32 keys, dealt out evenly."""
    stages = topk / 32
    return math.floor(stages / size) >= 3 and math.ceil(stages / size) <= 32


def _stock_plan(tokens: int, topk: int, capacity: Mapping[int, int]) -> int:
    """FlashInfer 0.7.4: the largest size that runs all tokens at once, or else the smallest."""
    sizes = [c for c in (8, 6, 5, 4, 3) if _stock_legal(topk, c)]
    return next((c for c in sizes if tokens <= capacity.get(c, 0)), sizes[-1])


def _cost(tokens: int, topk: int, size: int, capacity: Mapping[int, int]) -> int:
    """Whole waves, each as long as its longest CTA's stages and three more."""
    waves = math.ceil(Fraction(tokens, capacity[size]))
    return waves * (math.ceil(Fraction(topk, 32 * size)) + 3)


def _topks(step: int, end: int) -> Iterator[int]:
    return (topk for topk in range(step, end + 1, step) if any(_stock_legal(topk, c) for c in (3, 4, 6)))


@pytest.mark.parametrize("capacity", [GB200, B300, ODD], ids=["gb200", "b300", "odd"])
@pytest.mark.parametrize(("step", "end", "most"), [(64, 2048, 4096), (32, 8192, 128)])
def test_no_legal_size_costs_less(capacity: Mapping[int, int], step: int, end: int, most: int) -> None:
    """Up to 4096 tokens with every multiple of 64 up to 2048, up to 128 with every multiple of 32 there can be."""
    for topk in _topks(step, end):
        sizes = {c: math.ceil(Fraction(topk, 32 * c)) + 3 for c in capacity if capacity[c] and _stock_legal(topk, c)}
        for tokens in range(1, most + 1):
            choices = ((-(-tokens // capacity[c]), length, c) for c, length in sizes.items())
            *_, best = min((waves * length, waves, -c, c) for waves, length, c in choices)

            assert plan_clusters(tokens, topk, capacity) == best, (tokens, topk)


@pytest.mark.parametrize("capacity", [GB200, B300], ids=["gb200", "b300"])
def test_never_costs_more_than_the_stock_plan_and_differs_only_where_it_costs_less(
    capacity: Mapping[int, int],
) -> None:
    for topk in (512, 1024, 2048, 3072):
        for tokens in range(1, 513):
            stock, mine = _stock_plan(tokens, topk, capacity), plan_clusters(tokens, topk, capacity)
            costs = _cost(tokens, topk, stock, capacity), _cost(tokens, topk, mine, capacity)

            assert costs[1] < costs[0] or (costs[1] == costs[0] and mine >= stock), (tokens, topk)


@pytest.mark.parametrize(
    ("tokens", "capacity", "stock", "mine", "gain"),
    [
        (46, GB200, 3, 3, 1.0),
        (47, GB200, 3, 5, 1.56),
        (50, GB200, 3, 5, 1.56),
        (46, B300, 3, 5, 1.56),
        (50, B300, 3, 5, 1.56),
        (64, GB200, 3, 4, 1.31),
        (70, GB200, 3, 4, 1.31),
        (64, WIDE, 3, 2, 1.42),
        (70, WIDE, 3, 2, 1.42),
        (96, GB200, 3, 4, 1.31),
        (128, WIDE, 3, 2, 1.07),
    ],
)
def test_a_nearly_empty_second_wave_is_avoided(
    tokens: int, capacity: Mapping[int, int], stock: int, mine: int, gain: float
) -> None:
    """Top-k 2048; 47 tokens in clusters of 3 are two waves of 25 stages, in clusters of 5 two of 16."""
    assert _stock_plan(tokens, 2048, capacity) == stock
    assert plan_clusters(tokens, 2048, capacity) == mine
    assert _cost(tokens, 2048, stock, capacity) >= gain * _cost(tokens, 2048, mine, capacity)


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 8), (15, 8), (16, 6), (23, 6), (24, 5), (28, 5), (29, 4), (36, 4), (37, 3), (46, 3)]
)
def test_one_wave_is_planned_as_the_stock_op_plans_it(tokens: int, size: int) -> None:
    """The expectations of FlashInfer's own test of its planner, for the launches that fit at once."""
    assert _stock_plan(tokens, 2048, GB200) == plan_clusters(tokens, 2048, GB200) == size


def test_a_short_top_k_leaves_out_the_sizes_that_would_starve() -> None:
    """512 keys are 16 stages: 8 or 6 CTAs would get fewer than three each, unless the kernel allows it."""
    assert plan_clusters(1, 512, GB200) == 5
    assert plan_clusters(1, 512, GB200, stages=(1, 64)) == 8


def test_no_token_is_planned_as_one() -> None:
    assert plan_clusters(0, 2048, GB200) == plan_clusters(1, 2048, GB200)


def test_equal_costs_take_fewer_waves_then_the_larger_cluster() -> None:
    """96 stages: 4 CTAs in one wave are 27; 8 in two 30; 3 in one 35."""
    assert plan_clusters(10, 3072, {8: 9, 4: 10, 3: 11}) == 4
    assert plan_clusters(10, 672, {7: 10, 6: 10}) == 7  # 3 + 3 stages against 4 + 3
    assert plan_clusters(10, 480, {5: 10, 4: 10}) == 5
    assert plan_clusters(2, 576, {6: 1, 2: 2}) == 2  # one wave of 12 or two of 6
    assert plan_clusters(2, 704, {7: 2, 6: 2}) == 7  # both of 4 + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2048, GB200), r"num_tokens=-1.*allowed: 0 and more"),
        ((1, 2000, GB200), r"topk=2000 does not fill.*multiples of 32.*Pad"),
        ((1, 0, GB200), r"topk=0 does not"),
        ((1, 2048, {9: 4, 3: 1}), r"cluster sizes \[9\].*allowed: 1 to 8"),
        ((1, 2048, {0: 4}), r"cluster sizes \[0\]"),
        ((1, 64, GB200), r"topk=64.*no cluster size.*3 to 32 stages.*another kernel"),
        ((1, 2048, {3: 0}), r"capacity=\{3: 0\} leaves no cluster size"),
        ((1, 2048, {}), r"capacity=\{\} leaves"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(arguments: tuple[int, int, Mapping[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_clusters(*arguments)


def test_glm_53_stores_the_published_bytes_per_token() -> None:
    """vLLM 0.33.0's own planner for 79 MLA layers and 22 indexers says these."""
    assert token_bytes("fp8", 79, 22) == 48_408
    assert token_bytes("fp8_ds_mla", 79, 22) == 54_728
    assert token_bytes("nvfp4_ds_mla", 79, 22) == 30_712
    assert row_bytes("bfloat16") == 2 * 576
    assert INDEXER_ROW_BYTES == 128 + 4


def test_the_nvfp4_row_of_the_plan_is_the_row_of_the_format() -> None:
    assert row_bytes("nvfp4_ds_mla") == ROW_BYTES


def test_sizes_that_are_no_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cache_dtype='auto'.*allowed: bfloat16.*Name the dtype"):
        row_bytes("auto")
    with pytest.raises(ValueError, match=r"mla_layers=2 with indexer_layers=3 is no model"):
        token_bytes("fp8", 2, 3)
    with pytest.raises(ValueError, match=r"mla_layers=-1 with indexer_layers=-1"):
        token_bytes("fp8", -1, -1)
