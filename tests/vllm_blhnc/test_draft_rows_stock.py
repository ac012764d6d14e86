"""A GQA draft model under an MLA target: its pages travel inside the rows, once.

No engine: vLLM's CPU attention for GQA does not accept BLHNC. See `row_workers` for what is real instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says
from row_workers import Deployment

if TYPE_CHECKING:
    from conftest import Process, StartSide

#: Blocks of one request: 3 runs on both sides together.
SOURCE, DESTINATION = [3, 4, 5, 6, 20, 21, 30, 31], [10, 11, 12, 13, 14, 15, 1, 2]
RUNS = 3
MLA, INDEXER, DRAFT = 64 * 576, 64 * 132, 2 * 64 * 2 * 64 * 2  # bytes of a page; the draft's is 2 heads of K and V
ALIGNMENT = 32 * 576
PAYLOAD = 3 * MLA + 2 * INDEXER + 2 * DRAFT
ROW = -(-PAYLOAD // ALIGNMENT) * ALIGNMENT
CACHES = 7


def _drafting(model: Path, **options: Any) -> Deployment:
    drafting: dict[str, Any] = {"drafts": 2, "speculative": ("dflash", "draft", 4)}
    return Deployment(str(model), **drafting | options)


@dataclass
class Pair:
    """Prefill and decode with the same deployment, and what each of them has registered."""

    prefill: Process
    decode: Process
    registered: list[dict[str, Any]]

    @property
    def address(self) -> dict[str, Any]:
        return self.registered[0]["address"]


@pytest.fixture(scope="module")
def pairs(start_side: StartSide, model: Path) -> dict[str, Pair]:
    """With the plugin, and with the same layout and no plugin."""
    started = {
        name: [start_side(_drafting(model, stock=name == "stock"), role) for role in ("kv_producer", "kv_consumer")]
        for name in ("rows", "stock")
    }
    return {
        name: Pair(prefill, decode, [prefill.answer(), decode.answer()]) for name, (prefill, decode) in started.items()
    }


def _ask(side: Process, method: str, *arguments: Any) -> Any:
    side.send((method, arguments))
    return side.answer()


def _moved(pair: Pair) -> dict[str, Any]:
    """Read the request's blocks; every page of them must be prefill's then, and every other page as before."""
    prefill, decode = pair.prefill, pair.decode
    for side, seed in ((prefill, 1), (decode, 2)):
        _ask(side, "fill", seed)
    others = [block for block in range(40) if block not in DESTINATION]
    before = _ask(decode, "digests", others)
    assert _ask(decode, "digests", DESTINATION) != _ask(prefill, "digests", SOURCE)

    result = _ask(decode, "read", pair.address, DESTINATION, SOURCE)

    assert result["done"]
    assert result["failed_blocks"] == []
    pages = _ask(decode, "digests", DESTINATION)
    assert pages == _ask(prefill, "digests", SOURCE)
    assert len(pages) == CACHES
    assert _ask(decode, "digests", others) == before
    return result


def test_rows_carry_the_drafts_pages_as_one_region_and_one_descriptor_a_run(pairs: dict[str, Pair]) -> None:
    pair = pairs["rows"]
    for side in pair.registered:
        assert side["regions"] == [(ROW, ROW)]
        assert side["row"] == ROW
        assert sum(side["pages"].values()) == PAYLOAD

    result = _moved(pair)

    assert result["telemetry"] == [(RUNS, len(SOURCE) * ROW)]


def test_stock_makes_a_descriptor_of_each_draft_page_and_sends_its_bytes_twice(pairs: dict[str, Pair]) -> None:
    """Twice where it has rows, which is from 0.33 on; before, every page is a descriptor, a draft's or not."""
    pair = pairs["stock"]

    ((descriptors, nbytes),) = _moved(pair)["telemetry"]

    regions = sorted(pair.registered[0]["regions"])
    if (ROW, ROW) in regions:
        assert regions == [(DRAFT, ROW)] * 2 + [(ROW, ROW)]
        assert (descriptors, nbytes) == (RUNS + 2 * len(SOURCE), len(SOURCE) * (ROW + 2 * DRAFT))
    else:
        assert regions == sorted([(MLA, ROW)] * 3 + [(INDEXER, ROW)] * 2 + [(DRAFT, ROW)] * 2)
        assert (descriptors, nbytes) == (CACHES * len(SOURCE), len(SOURCE) * PAYLOAD)


def test_peers_are_told_where_each_draft_page_lies(pairs: dict[str, Pair]) -> None:
    members = _ask(pairs["rows"].prefill, "members")

    places = sorted((offset, nbytes) for offset, nbytes in members.values())
    assert sorted(nbytes for _, nbytes in places) == sorted([MLA] * 3 + [INDEXER] * 2 + [DRAFT] * 2)
    assert all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(places))
    assert sum(places[-1]) <= ROW


def test_a_peer_that_registered_the_draft_as_stock_does_is_refused(pairs: dict[str, Pair]) -> None:
    decode, address = pairs["rows"].decode, pairs["stock"].address

    why = _ask(decode, "meet", address)

    says("peer-plugin", why)
    assert why.startswith("HandshakeMismatch: ")
    assert "here and None at the peer: make the glm53-blackwell release and" in why
    assert f"block_lens is 1 regions of [{ROW}] bytes here and" in why
    result = _ask(decode, "read", address, DESTINATION, SOURCE)
    assert result["telemetry"] == []
    assert result["failed_blocks"] == sorted(DESTINATION)


def test_what_cannot_carry_a_draft_is_refused(pairs: dict[str, Pair], model: Path) -> None:
    """Against a prefill of one rank; the decode sides are made one after the other in one process."""
    sides = {
        "peer-draft-tp": _drafting(model, ranks=2),
        "start-cache-groups": _drafting(model, window=128),
        "start-page-place": _drafting(model, drafts_apart=True),
        "start-draft-context-parallel": _drafting(model, context_parallel=2),
    }

    said = _ask(pairs["rows"].decode, "others", sides, pairs["rows"].address)

    for row, why in said.items():
        says(row, why)
    assert (
        "draft_tensor_parallel_size is 2 here and 1 at the peer: make --tensor-parallel-size" in said["peer-draft-tp"]
    )
    assert "SlidingWindowSpec of 2 layers from model.layers.4.self_attn.attn" in said["start-cache-groups"]
    assert "page of model.layers.4.self_attn.attn lies at" in said["start-page-place"]
    assert "decode_context_parallel_size=2" in said["start-draft-context-parallel"]
    assert all("--speculative-config" in why for row, why in said.items() if row.startswith("start"))
