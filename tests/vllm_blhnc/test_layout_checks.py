"""Every way in which a registration or a peer can be wrong is refused, with the values and the setting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from refusal_table import says

from vllm_blhnc.checks import MUST_MATCH, LayoutError, Registered, check_registration, peer_differences
from vllm_blhnc.plan import BlockRow

PAGES = {"0.attn": 400, "0.indexer": 100, "1.attn": 400}
ROW = BlockRow(payload=900, nbytes=1024, alignment=256)


def _registered(**overrides: Any) -> Registered:
    """What stock registers for `PAGES` when all is well, in its own page order: indexer pages first."""
    right: dict[str, Any] = {
        "layout": "BLHNC",
        "lengths": [1024],
        "strides": [1024],
        "members": {"0.indexer": (0, 100), "0.attn": (100, 400), "1.attn": (500, 400)},
        "layer_strides": dict.fromkeys(PAGES, 1024),
    }
    return Registered(**right | overrides)


def test_whole_dense_rows_with_all_pages_are_accepted() -> None:
    check_registration(_registered(), ROW, PAGES)
    check_registration(_registered(lengths=(1024,), strides=(1024,)), ROW, PAGES)


def test_gaps_between_pages_are_accepted_if_they_fit_the_payload() -> None:
    members = {"0.indexer": (0, 100), "0.attn": (110, 400), "1.attn": (510, 390)}

    check_registration(_registered(members=members), ROW, PAGES | {"1.attn": 390})


@pytest.mark.parametrize(
    ("row", "wrong", "seen", "needed", "setting"),
    [
        pytest.param(
            "start-layout",
            {"layout": "LBNHC"},
            "kv_cache_layout=LBNHC",
            "BLHNC",
            "VLLM_KV_CACHE_LAYOUT",
            id="other-layout",
        ),
        pytest.param(
            "start-regions",
            {"lengths": [100, 400, 400], "strides": [1024, 1024, 1024]},
            "lengths [100, 400, 400] and strides [1024, 1024, 1024]",
            "one region with both equal to 1024 (900 of KV, aligned to 256)",
            'layout="stock"',
            id="one-region-a-layer",
        ),
        pytest.param(
            "start-regions",
            {"lengths": [900]},
            "lengths [900] and strides [1024]",
            "both equal to 1024",
            'layout="stock"',
            id="gap-after-payload",
        ),
        pytest.param(
            "start-regions",
            {"strides": [2048]},
            "strides [2048]",
            "both equal to 1024",
            'layout="stock"',
            id="stride-too-long",
        ),
        pytest.param(
            "start-regions",
            {"lengths": [1024, 64], "strides": [1024, 64]},
            "[1024, 64]",
            "one region",
            "report",
            id="second-region",
        ),
        pytest.param(
            "start-regions", {"lengths": [], "strides": []}, "lengths []", "one region", 'layout="stock"', id="nothing"
        ),
        pytest.param(
            "start-regions",
            {"lengths": list(range(101)), "strides": [0] * 101},
            "[0, 1, 2, 3, ... 101 in all]",
            "one region",
            'layout="stock"',
            id="many-regions-are-shortened",
        ),
        pytest.param(
            "start-page-missing",
            {"members": {"0.indexer": (0, 100), "0.attn": (100, 400)}},
            "layers [1.attn] are not inside",
            "all 3 caches",
            'layout="stock"',
            id="page-missing",
        ),
        pytest.param(
            "start-page-place",
            {"members": {"0.indexer": (0, 100), "0.attn": (100, 400), "1.attn": (500, 300)}},
            "page of 1.attn lies at bytes 500..800",
            "it must be 400 bytes",
            'layout="stock"',
            id="page-cut-short",
        ),
        pytest.param(
            "start-page-place",
            {"members": {"0.indexer": (0, 100), "0.attn": (100, 400), "1.attn": (499, 400)}},
            "page of 1.attn lies at bytes 499..899",
            "start at or after 500",
            'layout="stock"',
            id="pages-overlap",
        ),
        pytest.param(
            "start-page-place",
            {"members": {"0.indexer": (0, 100), "0.attn": (100, 400), "1.attn": (501, 400)}},
            "page of 1.attn lies at bytes 501..901",
            "end by 900",
            'layout="stock"',
            id="page-in-the-padding",
        ),
        pytest.param(
            "start-attention",
            {"layer_strides": dict.fromkeys(PAGES, 1024) | {"1.attn": 400}},
            "caches [1.attn] advance by [400] bytes",
            "the registered row by 1024",
            'layout="stock"',
            id="attention-elsewhere",
        ),
    ],
)
def test_a_wrong_registration_is_refused(row: str, wrong: dict[str, Any], seen: str, needed: str, setting: str) -> None:
    with pytest.raises(LayoutError) as refused:
        check_registration(_registered(**wrong), ROW, PAGES)

    text = str(refused.value)
    says(row, f"LayoutError: {text}")
    assert seen in text
    assert needed in text
    assert setting in text


def _metadata() -> dict[str, Any]:
    """The handshake metadata of a worker, as it comes off the wire, of the fields that rows depend on."""
    return {
        "engine_id": "a",
        "num_blocks": 7,
        "kv_cache_layout": "BLHNC",
        "block_size": 64,
        "attn_backend_name": "FLASHINFER_MLA_SPARSE",
        "physical_blocks_per_logical_kv_block": 1,
        "block_lens": [1024],
        "block_strides": [1024],
        "packed_member_layouts": {"0.indexer": [0, 100], "0.attn": [100, 400], "1.attn": [500, 400]},
        "dcp_size": 1,
        "pcp_size": 1,
    }


def test_peers_may_differ_in_what_rows_do_not_depend_on() -> None:
    peer = _metadata() | {"engine_id": "b", "num_blocks": 9, "new_field": 1}
    peer["packed_member_layouts"] = {k: tuple(v) for k, v in reversed(peer["packed_member_layouts"].items())}

    assert peer_differences(_metadata(), peer) == []


@pytest.mark.parametrize(
    ("row", "field", "value", "here", "there", "setting"),
    [
        ("peer-layout", "kv_cache_layout", "LBNHC", "'BLHNC' here", "'LBNHC' at the peer", "blhnc.layout"),
        ("peer-block-size", "block_size", 128, "64 here", "128 at the peer", "--block-size"),
        ("peer-backend", "attn_backend_name", "FLASHMLA_SPARSE", "FLASHINFER", "FLASHMLA", "--attention-backend"),
        ("peer-kernel-blocks", "physical_blocks_per_logical_kv_block", 2, "1 here", "2 at the peer", "--block-size"),
        ("peer-row-bytes", "block_lens", [2048], "1 regions of [1024]", "1 regions of [2048]", "--kv-cache-dtype"),
        ("peer-row-bytes", "block_lens", [1024, 64], "1 regions of [1024]", "2 regions of [64, 1024]", "draft model"),
        ("peer-dcp", "dcp_size", 2, "1 here", "2 at the peer", "--decode-context-parallel-size"),
        ("peer-pcp", "pcp_size", 2, "1 here", "2 at the peer", "--prefill-context-parallel-size"),
        ("peer-row-stride", "block_strides", [2048], "[1024] bytes here", "[2048] bytes at the peer", "--block-size"),
        (
            "peer-pages",
            "packed_member_layouts",
            {"0.indexer": [0, 100], "1.attn": [100, 400], "0.attn": [500, 400]},
            "3 pages (differing: [('0.attn', [100, 400]), ('1.attn', [500, 400])]) here",
            "3 pages (differing: [('0.attn', [500, 400]), ('1.attn', [100, 400])]) at the peer",
            "MTP",
        ),
        (
            "peer-pages",
            "packed_member_layouts",
            {"0.indexer": [0, 100], "0.attn": [100, 400]},
            "3 pages (differing: [('1.attn', [500, 400])]) here",
            "2 pages (differing: none) at the peer",
            "MTP",
        ),
        ("peer-pages", "packed_member_layouts", {}, "3 pages (differing: [", "0 pages (differing: none)", "MTP"),
        ("peer-block-size", "block_size", None, "64 here", "None at the peer", "--block-size"),
    ],
)
def test_each_difference_is_told_with_both_values_and_the_setting(
    row: str, field: str, value: Any, here: str, there: str, setting: str
) -> None:
    (sentence,) = peer_differences(_metadata(), _metadata() | {field: value})

    says(row, sentence)
    assert sentence.startswith(f"{field} is ")
    assert here in sentence
    assert there in sentence
    assert sentence.endswith(" equal")
    assert setting in sentence.rpartition(": make ")[2]


def test_a_difference_in_order_alone_is_told_too() -> None:
    mine, peer = _metadata() | {"block_lens": [1, 2]}, _metadata() | {"block_lens": [2, 1]}

    (sentence,) = peer_differences(mine, peer)

    assert "2 regions of [1, 2] bytes here and at the peer, but not in detail" in sentence


@pytest.mark.parametrize("forget", [dict.clear, lambda peer: peer.pop("packed_member_layouts")])
def test_a_peer_that_does_not_tell_is_different(forget: Callable[[dict[str, Any]], object]) -> None:
    peer = copy.deepcopy(_metadata())
    forget(peer)

    assert {sentence.split()[0] for sentence in peer_differences(_metadata(), peer)} == set(MUST_MATCH) - set(peer)


def test_only_the_named_fields_are_compared() -> None:
    peer = _metadata() | {"kv_cache_layout": "LBNHC", "block_lens": [400]}

    found = peer_differences(_metadata(), peer, ("kv_cache_layout",))

    assert [sentence.split()[0] for sentence in found] == ["kv_cache_layout"]


def test_another_layout_is_told_alone() -> None:
    """Lengths, strides and pages differ as well then, and advice about them would mislead."""
    mine = {"kv_cache_layout": "BLHNC", "block_lens": [2048], "block_strides": [2048], "block_size": 64}
    peer = {"kv_cache_layout": "LBNHC", "block_lens": [1024, 1024], "block_strides": [1024, 1024], "block_size": 64}

    (found,) = peer_differences(mine, peer)

    assert found.startswith("kv_cache_layout is 'BLHNC' here and 'LBNHC' at the peer")


@pytest.mark.parametrize("odd", [[[1], [2]], ["x", 1], [None], {"a": 1, 2: "b"}, "text", 7, None])
def test_odd_values_of_a_peer_are_told_and_not_stumbled_over(odd: Any) -> None:
    (found,) = peer_differences({"block_lens": [2048]}, {"block_lens": odd}, ["block_lens"])

    assert found.startswith("block_lens is 1 regions of [2048] bytes here and ")
