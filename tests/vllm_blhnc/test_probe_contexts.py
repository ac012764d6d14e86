"""The negative control's contexts and verdict; the probe itself runs against the whole stack."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_blhnc.probe import contexts, verdict


@given(st.sampled_from([1, 16, 64, 128]), st.integers(0, 1000), st.integers(1, 5))
def test_contexts_share_length_and_last_token_and_fill_every_transferred_block(
    block_size: int, seed: int, blocks: int
) -> None:
    a, b = contexts(block_size, seed, blocks)

    assert len(a) == len(b) == blocks * block_size + 1
    assert a[-1] == b[-1]
    assert all(chr(token).isascii() and chr(token).isprintable() for token in a + b)
    assert contexts(block_size, seed, blocks) == (a, b)


def test_contexts_have_nothing_else_in_common() -> None:
    a, b = contexts(64, seed=0)

    assert sum(x == y for x, y in zip(a, b, strict=True)) < len(a) / 10
    assert contexts(64, seed=1) != (a, b)


@pytest.mark.parametrize(
    ("same", "control", "other", "holds"),
    [
        pytest.param([1, 2], [1, 2], [3, 4], True, id="decode-used-the-transfer"),
        pytest.param([1, 2], [3, 4], [3, 4], False, id="decode-computed-the-context-itself"),
        pytest.param([1, 2], [1, 2], [1, 2], False, id="contexts-cannot-tell"),
        pytest.param([1, 2], [5, 6], [3, 4], False, id="neither"),
        pytest.param([], [], [3, 4], False, id="no-answer"),
    ],
)
def test_the_verdict_needs_equal_continuations_of_telling_contexts(
    same: list[int], control: list[int], other: list[int], holds: bool
) -> None:
    assert verdict(same, control, other) is holds
