import itertools

import pytest
from flashinfer.experimental.nvfp4_sparse_mla_decode.backend import (
    PLAN_CTAS,
    is_valid_config,
    select_num_ctas,
)

# Clusters that run at once on a device of 148 SMs, by size.
CAPACITY = {8: 16, 6: 22, 5: 28, 4: 36, 3: 46}


def cost(tokens, topk, size, capacity):
    waves = -(-tokens // capacity[size])
    return waves * (-(-topk // 32 // size) + 3)


def one_wave(tokens, topk, capacity):
    """The rule of before: the largest size that fits into one wave, else the smallest."""
    valid = [size for size in PLAN_CTAS if is_valid_config(topk, size)]
    fitting = [size for size in valid if tokens <= capacity[size]]
    return fitting[0] if fitting else valid[-1]


@pytest.mark.parametrize("topk", [512, 1024, 2048])
def test_no_size_is_cheaper_and_the_rule_of_before_never_is(topk):
    for tokens in range(1, 300):
        chosen = select_num_ctas(tokens, topk, CAPACITY)
        valid = [size for size in PLAN_CTAS if is_valid_config(topk, size)]
        costs = {size: cost(tokens, topk, size, CAPACITY) for size in valid}
        assert costs[chosen] == min(costs.values())
        assert costs[chosen] <= costs[one_wave(tokens, topk, CAPACITY)]


@pytest.mark.parametrize("tokens", [47, 48, 49, 50])
def test_just_beyond_one_wave_it_is_half_again_as_fast(tokens):
    before = cost(tokens, 2048, one_wave(tokens, 2048, CAPACITY), CAPACITY)
    after = cost(tokens, 2048, select_num_ctas(tokens, 2048, CAPACITY), CAPACITY)
    assert before / after >= 1.5


def test_one_token_takes_the_largest_size():
    assert select_num_ctas(1, 2048, CAPACITY) == select_num_ctas(0, 2048, CAPACITY) == 8


def test_sizes_that_the_device_cannot_run_are_left_out():
    assert select_num_ctas(1, 2048, CAPACITY | {8: 0, 6: 0}) == 5
    assert select_num_ctas(1, 2048, {}) == min(PLAN_CTAS)


def test_a_width_without_a_size_is_refused():
    for topk in (32, 2047):
        with pytest.raises(ValueError, match=str(topk)):
            select_num_ctas(1, topk, CAPACITY)


def test_equal_costs_take_fewer_waves_and_then_larger_clusters():
    for tokens, topk in itertools.product(range(1, 150), (1024, 2048)):
        chosen = select_num_ctas(tokens, topk, CAPACITY)
        equal = [
            size
            for size in PLAN_CTAS
            if is_valid_config(topk, size)
            and cost(tokens, topk, size, CAPACITY) == cost(tokens, topk, chosen, CAPACITY)
        ]
        assert chosen == min(equal, key=lambda size: (-(-tokens // CAPACITY[size]), -size))
