"""The indexer against a float64 reference on random paged caches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_cache import Layout, decode_e4m3, layouts, strided_pages
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cpu_dsa import indexer
from vllm_cpu_dsa.indexer import page_views, select, store_keys
from vllm_cpu_dsa.paged import PagedBatch
from vllm_cpu_dsa.quantize import KEY_FLOOR, quantize_rows

BLOCK = 64
DIM = 128
PAGE = (BLOCK, DIM + 4)


def _random_cache(layout: Layout, gap: int, offset: int, rng: np.random.Generator) -> torch.Tensor:
    """Pages of random FP8 codes (no NaN) and random power-of-two scales, in vLLM's page format."""
    cache = strided_pages(layout.pages, PAGE, torch.uint8, gap, offset)
    codes = rng.integers(0, 256, (layout.pages, BLOCK * DIM), dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    scales = (2.0 ** rng.integers(-9, -3, (layout.pages, BLOCK))).astype(np.float32)
    raw = np.concatenate([codes, scales.view(np.uint8).reshape(layout.pages, -1)], axis=1)
    cache.copy_(torch.from_numpy(raw).view(layout.pages, *PAGE))
    return cache


def _keys(cache: torch.Tensor, blocks: torch.Tensor, context: int) -> np.ndarray:
    """float64 keys [context, DIM] of one request, read byte by byte from the page format."""
    keys = []
    for block in blocks.tolist()[: -(-context // BLOCK)]:
        page = cache[block].reshape(-1).numpy()
        codes = page[: BLOCK * DIM].reshape(BLOCK, DIM)
        scales = page[BLOCK * DIM :].copy().view(np.float32)
        keys.append(decode_e4m3(codes) * scales[:, None].astype(np.float64))
    return np.concatenate(keys)[:context]


def _check(
    cache: torch.Tensor, layout: Layout, q: torch.Tensor, weights: torch.Tensor, topk: int, out: torch.Tensor
) -> None:
    """``out`` selects, for each query, the topk best of the tokens up to its own; near-ties are left out."""
    decoded = decode_e4m3(q.view(torch.uint8).numpy())
    for row, (context, queries) in enumerate(layout.contexts):
        keys = _keys(cache, layout.blocks[row], context)
        for index in range(queries):
            token, position = layout.query_start[row] + index, context - queries + index
            heads = np.maximum(decoded[token] @ keys[: position + 1].T, 0)
            score = weights[token].double().numpy() @ heads
            chosen = out[token][out[token] >= 0].tolist()
            expected = min(topk, position + 1)
            assert len(chosen) == len(set(chosen)) == expected
            assert max(chosen) <= position
            order = np.argsort(-score)
            if expected <= position:
                close = 1e-6 * np.abs(score).max()
                if score[order[expected - 1]] - score[order[expected]] <= close:
                    continue
            assert set(chosen) == set(order[:expected].tolist())


REQUESTS = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 200)).map(lambda pair: (max(pair), min(pair))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(
    contexts=REQUESTS,
    topk=st.sampled_from([1, 16, 64, 129, 512]),
    heads=st.sampled_from([1, 3, 32]),
    gap=st.sampled_from([0, 4, 8448, 13]),
    offset=st.sampled_from([0, 4, 1001]),
    held=st.sampled_from([1, 1 << 14, 8 << 20]),
    seed=st.integers(0, 2**31),
)
def test_the_best_earlier_tokens_are_selected_whatever_the_pages_and_chunks(
    contexts: list[tuple[int, int]], topk: int, heads: int, gap: int, offset: int, held: int, seed: int
) -> None:
    layout = layouts(contexts, BLOCK, seed)
    rng = np.random.default_rng(seed)
    cache = _random_cache(layout, gap, offset, rng)
    tokens = layout.query_start[-1]
    q, scale = quantize_rows(torch.from_numpy(rng.standard_normal((tokens, heads, DIM))), floor=1e-10)
    weights = torch.from_numpy(rng.standard_normal((tokens, heads)).astype(np.float32)) * scale.squeeze(-1)
    out = torch.full((tokens, topk), 77, dtype=torch.int32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "SCORE_BYTES", held)
        select(cache, PagedBatch.of(layout.query_start, layout.seq_lens, layout.blocks), q, weights, topk, out)

    _check(cache, layout, q, weights, topk, out)


def test_rows_of_no_request_select_nothing() -> None:
    layout = layouts([(10, 10)], BLOCK, seed=1)
    cache = _random_cache(layout, 0, 0, np.random.default_rng(0))
    out = torch.full((13, 16), 5, dtype=torch.int32)

    select(
        cache,
        PagedBatch.of(layout.query_start, layout.seq_lens, layout.blocks),
        torch.zeros(13, 2, DIM).to(torch.float8_e4m3fn),
        torch.ones(13, 2),
        16,
        out,
    )

    assert (out[10:] == -1).all()
    assert sorted(out[9][out[9] >= 0].tolist()) == list(range(10))


@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (4096, 512), (31, 7)])
def test_keys_are_stored_in_the_stock_page_format_and_nowhere_else(gap: int, offset: int) -> None:
    cache = strided_pages(5, PAGE, torch.uint8, gap, offset)
    k = torch.randn(6, DIM, generator=torch.Generator().manual_seed(5))
    slots = torch.tensor([0, 63, -1, 2 * BLOCK + 7, -1, 4 * BLOCK + 63])

    store_keys(cache, slots, k)

    values, scales = quantize_rows(k, KEY_FLOOR)
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        page = cache[slot // BLOCK].reshape(-1)
        row = slot % BLOCK
        assert torch.equal(page[row * DIM : (row + 1) * DIM], values[token].view(torch.uint8))
        at = BLOCK * DIM + 4 * row
        assert page[at : at + 4].numpy().tobytes() == scales[token].numpy().tobytes()
    written = 4 * (DIM + 4)
    everything = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage())
    assert (everything != 0xFF).sum() <= written
    assert (everything != 0xFF).sum() > written - 30, "values of 0xFF are NaN and must not occur often"


def test_pages_whose_bytes_lie_apart_are_refused() -> None:
    heads_first = torch.zeros(64, 5, DIM + 4, dtype=torch.uint8).transpose(0, 1)

    with pytest.raises(ValueError, match=r"keys and scales share a page.*allowed are \(any, 132, 1\)"):
        page_views(heads_first)
