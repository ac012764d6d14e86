"""Row sizes, runs and descriptor counts against published and measured numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_blhnc.plan import block_row, descriptor_count, run_lengths

TOKENS = 64  # per block
INDEXER = 132 * TOKENS  # bytes of one page


def _glm53(row_bytes: int, *, mtp: bool = True) -> dict[str, int]:
    """GLM-5.3's pages: 78 MLA layers of which 21 run an indexer, and the MTP layer with both."""
    mla = {f"layers.{i}.attn": row_bytes * TOKENS for i in range(78 + mtp)}
    return mla | {f"layers.{i}.indexer": INDEXER for i in range(21 + mtp)}


@pytest.mark.parametrize(
    ("row_bytes", "mtp", "rows", "payload", "nbytes"),
    [
        pytest.param(576, True, 1, 3_098_112, 3_098_304, id="fp8-one-row"),
        pytest.param(576, True, 32, 3_098_112, 3_115_008, id="fp8-32-rows"),
        pytest.param(576, False, 32, 3_052_800, 3_059_712, id="fp8-without-mtp"),
        pytest.param(1152, True, 32, 6_010_368, 6_045_696, id="bf16"),
        pytest.param(352, True, 1, 1_965_568, 1_965_568, id="nvfp4"),
    ],
)
def test_rows_of_glm53_have_the_published_sizes(
    row_bytes: int, mtp: bool, rows: int, payload: int, nbytes: int
) -> None:
    pages = _glm53(row_bytes, mtp=mtp)
    alignments = [rows * row_bytes if name.endswith("attn") else 1 for name in pages]

    row = block_row(pages, alignments)

    assert (row.payload, row.nbytes, row.padding) == (payload, nbytes, nbytes - payload)
    assert row.alignment == rows * row_bytes


def test_different_alignments_are_all_kept() -> None:
    assert block_row({"a": 100, "b": 1}, [8, 12]).nbytes == 120


@pytest.mark.parametrize(
    ("pages", "message"),
    [({}, "at least one page"), ({"a": 64, "b": 0}, "'b': 0"), ({"a": -1}, "'a': -1")],
)
def test_a_row_without_bytes_is_refused(pages: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_row(pages, [1])


_ids = st.lists(st.integers(0, 8) | st.integers(0, 10_000), max_size=40)


@settings(deadline=None)  # a busy machine is no fault
@given(st.data())
def test_a_run_is_a_stretch_in_which_both_ids_keep_their_distance_to_the_position(data: st.DataObject) -> None:
    source = data.draw(_ids)
    destination = data.draw(st.lists(st.integers(0, 8), min_size=len(source), max_size=len(source)))
    if data.draw(st.booleans()):  # make long runs likely
        source, destination = sorted(source), sorted(destination)

    grouped = itertools.groupby(range(len(source)), key=lambda i: (source[i] - i, destination[i] - i))

    assert run_lengths(source, destination) == [len(list(run)) for _, run in grouped]


@pytest.mark.parametrize(
    ("source", "destination", "lengths"),
    [
        ([], [], []),
        ([7], [3], [1]),
        ([1, 2, 3], [9, 10, 11], [3]),
        ([1, 2, 3], [11, 10, 9], [1, 1, 1]),
        ([1, 2, 3, 4], [5, 6, 8, 9], [2, 2]),
        ([1, 2, 4, 5], [5, 6, 7, 8], [2, 2]),
        ([3, 3], [4, 4], [1, 1]),
    ],
)
def test_runs_break_where_either_side_does(source: list[int], destination: list[int], lengths: list[int]) -> None:
    assert run_lengths(source, destination) == lengths


def test_block_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 source blocks cannot move to 1 destination blocks"):
        run_lengths([1, 2], [1])


@pytest.mark.parametrize(
    ("blocks", "runs", "regions", "dense", "descriptors"),
    [
        # NIXL's own telemetry: 256 contiguous blocks on vLLM 0.32, 40 blocks in 4 runs on NIXL 1.5.1.
        pytest.param(256, 1, 101, True, 101, id="contiguous-default-layout"),
        pytest.param(256, 1, 101, False, 25_856, id="contiguous-strided-pages"),
        pytest.param(256, 1, 1, True, 1, id="contiguous-rows"),
        pytest.param(40, 4, 101, True, 404, id="fragmented-default-layout"),
        pytest.param(40, 4, 101, False, 4_040, id="fragmented-strided-pages"),
        pytest.param(40, 4, 1, False, 40, id="fragmented-rows-with-gaps"),
        pytest.param(40, 4, 1, True, 4, id="fragmented-rows"),
        # 200,000 tokens with ten blocks a run.
        pytest.param(3_125, 313, 101, True, 31_613, id="long-default-layout"),
        pytest.param(3_125, 313, 101, False, 315_625, id="long-strided-pages"),
        pytest.param(3_125, 313, 1, True, 313, id="long-rows"),
    ],
)
def test_descriptor_counts_are_the_measured_ones(
    blocks: int, runs: int, regions: int, dense: bool, descriptors: int
) -> None:
    assert descriptor_count(blocks, runs, regions, dense=dense) == descriptors
