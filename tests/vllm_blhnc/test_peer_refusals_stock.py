"""Decode sides that differ from prefill in one thing each, over real handshakes: the field, both values, the setting.

No engine, see `row_workers`: what is compared is the configuration, and engines of all these would need GPUs.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says
from row_workers import Deployment

if TYPE_CHECKING:
    from conftest import Call, Process, StartSide

#: Row of the table -> what decode has else than prefill, and the values that the message shows.
DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "peer-vllm": ({"facts": {"vllm": "0.99.0"}}, "vllm is '0.99.0' here and '0."),
    "peer-nixl": ({"facts": {"nixl": "0.9.0"}}, "nixl is '0.9.0' here and '1."),
    "peer-connector": ({"facts": {"nixl_connector_version": 5}}, "nixl_connector_version is 5 here and 1"),
    "peer-model-layers": ({"facts": {"model_layers": 78}}, "model_layers is 78 here and 4 at the peer"),
    "peer-mode": ({"connector": "NixlPushConnector"}, "transfer_mode is 'push' here and 'pull' at the peer"),
    "peer-dtype": ({"engine": {"dtype": "bfloat16"}}, "dtype is 'torch.bfloat16' here and 'torch.float32' at"),
    "peer-cache-dtype": ({"cache_dtype": "fp8_ds_mla"}, "cache_dtype is 'fp8_ds_mla' here and 'auto' at the peer"),
    "peer-speculation": ({"speculative": None}, "speculative_method is None here and 'mtp' at the peer"),
    "peer-depth": ({"speculative": ("mtp", "glm", 3)}, "speculative_tokens is 3 here and 1 at the peer"),
    "peer-draft-model": ({"speculative": ("mtp", "other", 1)}, "draft_model is 'other' here and 'glm' at the peer"),
    "peer-hash": ({"revision": "abc"}, "though vllm_blhnc, vllm, nixl"),
    "peer-hybrid": (
        {"engine": {"disable_hybrid_kv_cache_manager": True}},
        "hybrid_kv_cache_manager is False here and True at the peer",
    ),
    "peer-dcp": ({"context_parallel": 2}, "dcp_size is 2 here and 1 at the peer"),
    "peer-backend": ({"dense": True}, "attn_backend_name is 'TRITON_MLA' here and 'FLASHMLA_SPARSE' at the peer"),
    "peer-block-size": ({"dense": True, "block_size": 128}, "block_size is 128 here and 64 at the peer"),
    "peer-row-bytes": ({"mla_layers": 4}, "block_lens is 1 regions of [165888] bytes here and 1 regions of [129024]"),
    "peer-row-stride": ({"mla_layers": 4}, "block_strides is 1 regions of [165888] bytes here"),
    "peer-pages": ({"mla_layers": 4}, "packed_member_layouts is 6 pages (differing: ["),
    "peer-layout": (
        {"layout": "LBNHC", "blhnc": {"layout": "stock"}},
        "kv_cache_layout is 'LBNHC' here and 'BLHNC' at the peer",
    ),
    # These do not come as far as a handshake.
    "start-block-size": ({"block_size": 128}, "block_size=128, but this platform's attention backends compute on"),
    "start-kernel-block": ({"block_size": 32}, "block_size=32: No common block size for 32"),
}


def _deployment(model: Path, **options: Any) -> Deployment:
    drafting: dict[str, Any] = {"speculative": ("mtp", "glm", 1)}
    return Deployment(str(model), **drafting | options)


@pytest.fixture(scope="module")
def prefill(start_side: StartSide, model: Path) -> dict[str, Any]:
    return start_side(_deployment(model), "kv_producer").answer()["address"]


@pytest.fixture(scope="module")
def decode(start_side: StartSide, model: Path) -> Process:
    side = start_side(_deployment(model), "kv_consumer")
    side.answer()
    return side


@pytest.fixture(scope="module")
def said(prefill: dict[str, Any], decode: Process, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Row -> what the decode side with this difference said."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "glm"
    elsewhere.symlink_to(model)
    sides = {row: _deployment(model, **options) for row, (options, _) in DIFFERENCES.items()}
    sides["peer-model"] = _deployment(elsewhere)
    sides["equal"] = _deployment(model)
    tuned = {"peer_facts": {"tuning": {"value": "fast", "setting": "TUNING"}}}
    sides["tuned"] = _deployment(model, facts=tuned)
    sides["tuned-stock"] = _deployment(model, facts=tuned, layout="LBNHC", blhnc={"layout": "stock"})
    sides["other-ranks"] = _deployment(model, ranks=2)
    decode.send(("others", (sides, prefill)))
    return decode.answer()


@pytest.mark.parametrize("row", DIFFERENCES)
def test_a_side_that_differs_is_told_in_what(said: dict[str, str], row: str) -> None:
    says(row, said[row])
    assert DIFFERENCES[row][1] in said[row]
    kind = "LayoutError" if row.startswith("start") else "HandshakeMismatch: prefill and decode do not agree"
    assert said[row].startswith(f"{kind}")


def test_another_model_is_told_by_both_paths(said: dict[str, str], model: Path) -> None:
    says("peer-model", said["peer-model"])
    assert "at the peer: make --model, as text, equal" in said["peer-model"]
    assert str(model) in said["peer-model"]


def test_only_what_differs_is_named(said: dict[str, str]) -> None:
    facts = ["peer-vllm", "peer-nixl", "peer-depth", "peer-cache-dtype", "peer-draft-model", "peer-dcp", "peer-hybrid"]

    for row in facts:
        assert said[row].count(" equal") == 1, said[row]


@pytest.mark.parametrize(("side", "differences"), [("tuned", 1), ("tuned-stock", 2)])
def test_another_packages_fact_is_compared_with_every_layout(said: dict[str, str], side: str, differences: int) -> None:
    assert "tuning is 'fast' here and None at the peer: make TUNING equal" in said[side]
    assert said[side].count(" equal") == differences


def test_equal_sides_agree_and_so_do_other_tensor_parallel_sizes_without_a_draft(said: dict[str, str]) -> None:
    assert said["equal"] == ""
    assert said["other-ranks"] == ""


def test_a_peer_that_is_gone_is_named(decode: Process, prefill: dict[str, Any]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        decode.send(("meet", (prefill | {"remote_port": unused.getsockname()[1]},)))
        why = decode.answer()

    says("peer-silent", why)


def _ask_a_stranger() -> None:
    """A server that speaks ZeroMQ and something else than NIXL handshakes."""
    import zmq

    from vllm_blhnc import handshake

    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        port = server.bind_to_random_port("tcp://127.0.0.1")

        def answer() -> None:
            who, empty, _ = server.recv_multipart()
            server.send_multipart((who, empty, b"\xc1", b""))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            handshake.ask("127.0.0.1", port)
        finally:
            thread.join()


def test_a_peer_that_speaks_otherwise_is_named(call: Call) -> None:
    with pytest.raises(RuntimeError) as failed:
        call(_ask_a_stranger)

    says("peer-stranger", str(failed.value))
