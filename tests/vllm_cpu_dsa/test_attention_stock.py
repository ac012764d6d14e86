"""Sparse attention against a float64 reference on random paged caches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_cache import Layout, layouts, strided_pages
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cpu_dsa import attention
from vllm_cpu_dsa.attention import attend, store_rows
from vllm_cpu_dsa.paged import PagedBatch
from vllm_cpu_dsa.rows import LATENT, ROPE, PlainRows

WIDTH = LATENT + ROPE


def _reference(
    cache: torch.Tensor, layout: Layout, q: torch.Tensor, selected: torch.Tensor, scale: float
) -> np.ndarray:
    """float64 [tokens, heads, LATENT], one query at a time."""
    block_size = cache.shape[1]
    out = np.zeros((q.shape[0], q.shape[1], LATENT))
    for row, (_, queries) in enumerate(layout.contexts):
        for token in range(layout.query_start[row], layout.query_start[row] + queries):
            positions = [p for p in selected[token].tolist() if p >= 0]
            rows = np.stack(
                [cache[int(layout.blocks[row, p // block_size]), p % block_size].double().numpy() for p in positions]
            )
            score = q[token].double().numpy() @ rows.T * scale
            weight = np.exp(score - score.max(-1, keepdims=True))
            out[token] = weight / weight.sum(-1, keepdims=True) @ rows[:, :LATENT]
    return out


REQUESTS = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 12)).map(lambda pair: (max(pair), min(pair))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(
    contexts=REQUESTS,
    topk=st.sampled_from([1, 8, 64, 200]),
    heads=st.sampled_from([1, 4]),
    block_size=st.sampled_from([16, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    gap=st.sampled_from([0, WIDTH, 777]),
    offset=st.sampled_from([0, 5]),
    held=st.sampled_from([1, 1 << 20, 32 << 20]),
    seed=st.integers(0, 2**31),
)
def test_each_query_attends_to_exactly_its_selected_rows(
    contexts: list[tuple[int, int]],
    topk: int,
    heads: int,
    block_size: int,
    dtype: torch.dtype,
    gap: int,
    offset: int,
    held: int,
    seed: int,
) -> None:
    layout = layouts(contexts, block_size, seed)
    rng = np.random.default_rng(seed)
    cache = strided_pages(layout.pages, (block_size, WIDTH), dtype, gap, offset)
    cache.copy_(torch.from_numpy(rng.standard_normal(tuple(cache.shape))))
    tokens = layout.query_start[-1]
    q = torch.from_numpy(rng.standard_normal((tokens, heads, WIDTH))).to(dtype)
    selected = torch.full((tokens, topk), -1, dtype=torch.int32)
    for row, (context, queries) in enumerate(layout.contexts):
        for index in range(queries):
            past = context - queries + index + 1
            chosen = rng.permutation(past)[: rng.integers(1, min(topk, past) + 1)]
            selected[layout.query_start[row] + index, : len(chosen)] = torch.from_numpy(chosen)
    out = torch.full((tokens, heads, LATENT), 9.0, dtype=dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "GATHERED_BYTES", held)
        batch = PagedBatch.of(layout.query_start, layout.seq_lens, layout.blocks)
        attend(cache, batch, q, selected, 0.07, PlainRows(), out)

    # Sums run in float32 (a relative 1e-5 over 576 terms); the result is then rounded once to its dtype.
    tolerance = 1e-4 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    np.testing.assert_allclose(
        out.double().numpy(), _reference(cache, layout, q, selected, 0.07), rtol=tolerance, atol=tolerance
    )


def test_rows_of_no_request_are_left_alone() -> None:
    layout = layouts([(4, 2)], 16, seed=0)
    out = torch.full((5, 1, LATENT), 9.0)

    attend(
        torch.ones(layout.pages, 16, WIDTH),
        PagedBatch.of(layout.query_start, layout.seq_lens, layout.blocks),
        torch.ones(5, 1, WIDTH),
        torch.zeros(5, 8, dtype=torch.int32),
        1.0,
        PlainRows(),
        out,
    )

    assert (out[:2] == 1).all()
    assert (out[2:] == 9).all()


def test_a_selection_beyond_the_context_fails_instead_of_reading_another_requests_rows() -> None:
    layout = layouts([(20, 1)], 16, seed=0)

    with pytest.raises(IndexError):
        attend(
            torch.zeros(layout.pages, 16, WIDTH),
            PagedBatch.of(layout.query_start, layout.seq_lens, layout.blocks),
            torch.zeros(1, 1, WIDTH),
            torch.tensor([[3, 20]], dtype=torch.int32),
            1.0,
            PlainRows(),
            torch.zeros(1, 1, LATENT),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_stored_at_their_slots_in_the_dtype_of_the_cache_and_nowhere_else(dtype: torch.dtype) -> None:
    cache = strided_pages(3, (16, WIDTH), dtype, gap=100, offset=9)
    generator = torch.Generator().manual_seed(2)
    latent, rope = torch.randn(3, LATENT, generator=generator), torch.randn(3, ROPE, generator=generator)

    store_rows(cache, torch.tensor([17, -1, 47]), latent, rope, PlainRows())

    for token, slot in ((0, 17), (2, 47)):
        row = cache[slot // 16, slot % 16]
        assert torch.equal(row[:LATENT], latent[token].to(dtype))
        assert torch.equal(row[LATENT:], rope[token].to(dtype))
    everything = torch.empty(0, dtype=dtype).set_(cache.untyped_storage())
    assert everything.isfinite().sum() == 2 * WIDTH


def test_requests_without_queries_in_a_step_are_passed_over() -> None:
    batch = PagedBatch.of([0, 3, 3, 4], [5, 9, 8], torch.arange(6).view(3, 2))

    assert [(r.start, r.stop, r.context, r.first_position) for r in batch.requests] == [(0, 3, 5, 2), (3, 4, 8, 7)]
    assert [r.blocks.tolist() for r in batch.requests] == [[0, 1], [4, 5]]
