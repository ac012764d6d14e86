"""What every exported figure is for hand-made transfers, and that the documentation lists them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from vllm_blhnc.figures import FIGURES
from vllm_blhnc.transfers import Transfer

DOCS = Path(__file__).parents[2] / "docs" / "blhnc.md"

#: 200,000 tokens of GLM-5.3 in fp8 at the published fragmentation; rows are padded by 16,896 bytes. The times are
#: made up.
TRANSFER: dict[str, Any] = {
    "operation": "READ",
    "layout": "BLHNC",
    "blocks": 3125,
    "runs": 313,
    "regions": 1,
    "descriptors": 313,
    "nbytes": 3125 * 3_115_008,
    "post_us": 250.0,
    "transfer_us": 80_000.0,
    "padding": 3125 * 16_896,
}


def _of(source: str, record: dict[str, Any]) -> dict[str, float]:
    prefix = "vllm:blhnc_"
    return {f.name.removeprefix(prefix): f.value(record) for f in FIGURES if f.source == source}


def test_figures_of_a_transfer() -> None:
    assert _of("transfers", TRANSFER) == {
        "blocks": 3125,
        "runs": 313,
        "blocks_per_run": pytest.approx(9.984, abs=5e-4),
        "descriptors": 313,
        "bytes": 9_734_400_000,
        "post_seconds": 0.00025,
        "wire_seconds": pytest.approx(0.07975),
        "post_share": 0.003125,
        "unmerged_transfers": 0,
        "padding_bytes": 52_800_000,
    }


@pytest.mark.parametrize(
    ("regions", "descriptors", "unmerged"),
    [
        pytest.param(1, 313, 0, id="rows"),
        pytest.param(101, 31_613, 0, id="a-region-a-cache-merged"),
        pytest.param(101, 315_625, 1, id="a-strided-region-a-cache"),
        pytest.param(1, 3125, 1, id="a-descriptor-a-block"),
    ],
)
def test_a_transfer_is_unmerged_if_it_costs_more_than_regions_times_runs(
    regions: int, descriptors: int, unmerged: int
) -> None:
    seen = _of("transfers", TRANSFER | {"regions": regions, "descriptors": descriptors})

    assert seen["unmerged_transfers"] == unmerged


def test_a_transfer_done_while_it_was_posted_was_all_posting() -> None:
    at_once = _of("transfers", TRANSFER | {"post_us": 40, "transfer_us": 40})
    unmeasurable = _of("transfers", TRANSFER | {"post_us": 0, "transfer_us": 0})

    assert (at_once["post_share"], at_once["wire_seconds"]) == (1, 0)
    assert (unmeasurable["post_share"], unmeasurable["wire_seconds"]) == (1, 0)


def test_figures_of_rows_and_of_a_refused_peer() -> None:
    row = {"layout": "BLHNC", "regions": 1, "nbytes": 3_115_008, "padding": 16_896}

    assert _of("rows", row) == {"regions": 1, "row_bytes": 3_115_008, "row_padding_bytes": 16_896}
    assert _of("refused", {}) == {"refused_peers": 1}


def test_buckets_rise_and_only_histograms_have_them() -> None:
    for figure in FIGURES:
        assert list(figure.buckets) == sorted(set(figure.buckets)), figure.name
        assert bool(figure.buckets) == (figure.kind == "histogram"), figure.name


def test_the_worst_case_of_200000_tokens_falls_into_a_bucket() -> None:
    """But for one: layer-outermost regions and no two blocks in a row, 315,625 descriptors."""
    worst = _of("transfers", TRANSFER | {"runs": 3125, "descriptors": 3125, "post_us": 0.4e6, "transfer_us": 2e6})
    for figure in FIGURES:
        if figure.buckets:
            assert worst[figure.name.removeprefix("vllm:blhnc_")] <= figure.buckets[-1], figure.name


def test_the_documentation_lists_exactly_the_exported_figures() -> None:
    rows = re.findall(r"^\| `(vllm:blhnc_\w+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE)

    assert rows == [(figure.name, figure.kind) for figure in FIGURES]


def test_the_log_line_has_every_figure_as_key_and_value() -> None:
    transfer = Transfer("chat-7", "WRITE", "BLHNC", 8, 3, 1, 3, 4_921_344, 8.0, 16_332.0)

    assert transfer.line() == (
        "request=chat-7 operation=WRITE layout=BLHNC blocks=8 runs=3 blocks_per_run=2.7 regions=1 descriptors=3 "
        "bytes=4921344 post_us=8 wire_us=16324 transfer_us=16332"
    )
