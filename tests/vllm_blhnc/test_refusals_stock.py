"""What does not start or does not pair, and the text that says why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

if TYPE_CHECKING:
    from conftest import Call, Engine, StartEngine


@pytest.fixture(scope="module")
def starts(start_engine: StartEngine) -> dict[str, Engine]:
    """Engines of which two cannot start; all at once, because most of a start is waiting."""
    return {
        "other-layout": start_engine("kv_producer", "BLHNC", environment={"VLLM_KV_CACHE_LAYOUT": "LBNHC"}),
        "misspelt": start_engine("kv_producer", "BLHNC", blhnc={"layot": "BLHNC"}),
        "push": start_engine("kv_producer", "BLHNC", connector="NixlPushConnector"),
    }


def _why(call: Call, *arguments: Any, **options: Any) -> str:
    """The error of a call that has to fail, without the log that follows it."""
    with pytest.raises(RuntimeError) as failed:
        call(*arguments, **options)
    return str(failed.value).partition("; last lines")[0]


def test_an_engine_with_another_layout_does_not_start(starts: dict[str, Engine]) -> None:
    """vLLM itself only warns when it cannot follow a connector's wish."""
    with pytest.raises(RuntimeError, match="LayoutError: kv_cache_layout=LBNHC") as failed:
        starts["other-layout"].answer()

    says("start-layout", str(failed.value))
    assert "unset VLLM_KV_CACHE_LAYOUT (or set it to BLHNC)" in str(failed.value)


def test_an_engine_with_a_misspelt_setting_does_not_start(starts: dict[str, Engine]) -> None:
    with pytest.raises(RuntimeError, match=r"ValueError: .*blhnc has unknown keys \['layot'\]") as failed:
        starts["misspelt"].answer()

    says("start-setting", str(failed.value))


def test_the_push_connector_registers_rows_too(starts: dict[str, Engine]) -> None:
    starts["push"].answer()

    assert "vllm_blhnc: 7 caches in one region of" in starts["push"].log
    assert "Creating v1 connector with name: NixlPushConnector" in starts["push"].log


def _config(*, mla: bool = True, stages: int = 1, hisparse: object = None, layout: str = "BLHNC") -> Any:
    extra = {"blhnc": {"layout": layout}}
    return SimpleNamespace(
        model_config=SimpleNamespace(model="glm", use_mla=mla),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        attention_config=SimpleNamespace(hisparse_config=hisparse),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
    )


def _make_worker(name: str, options: dict[str, Any]) -> None:
    from vllm_blhnc import connector

    getattr(connector, name)._worker_class(_config(**options), "engine", None)


@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPullConnector", "NixlPushConnector"])
@pytest.mark.parametrize(
    ("row", "options", "seen", "instead"),
    [
        ("start-pipeline", {"stages": 2}, "pipeline_parallel_size=2", "--pipeline-parallel-size 1"),
        ("start-model", {"mla": False}, "model glm has no MLA", "Serve an MLA model"),
        ("start-hisparse", {"hisparse": "set"}, "hisparse_config is set", "Serve without HiSparse"),
    ],
)
def test_what_has_no_rows_is_refused_before_anything_is_made(
    call: Call, connector: str, row: str, options: dict[str, Any], seen: str, instead: str
) -> None:
    why = _why(call, _make_worker, connector, options)

    says(row, why)
    assert why.startswith(f"LayoutError: {seen}")
    assert instead in why


def _register_with_host_buffers() -> None:
    from vllm_blhnc.connector import NixlConnector
    from vllm_blhnc.settings import Settings

    worker: Any = object.__new__(NixlConnector._worker_class)
    worker._settings = Settings()
    worker.kv_cache_layout, worker.use_host_buffer, worker.kv_buffer_device = "BLHNC", True, "cpu"
    worker.register_kv_caches({})


def test_host_buffers_are_refused(call: Call) -> None:
    """Stock stages through host buffers only beside a GPU, so the worker is a made-up one."""
    why = _why(call, _register_with_host_buffers)

    says("start-host-buffers", why)
    assert why.startswith("LayoutError: kv_buffer_device=cpu stages KV in host buffers")
    assert "Leave kv_buffer_device at its default" in why


def _meet(method: str, layout: str, peer_differs_in: dict[str, Any]) -> None:
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
        NixlAgentMetadata,
        NixlHandshakePayload,
    )

    from vllm_blhnc.connector import NixlPushConnector
    from vllm_blhnc.metrics import BlockRowStats
    from vllm_blhnc.settings import Settings

    metadata: dict[str, Any] = {
        "engine_id": "here",
        "agent_metadata": b"",
        "kv_caches_base_addr": [0],
        "device_id": 0,
        "num_blocks": 1,
        "block_lens": [1024],
        "block_strides": [1024],
        "kv_cache_layout": "BLHNC",
        "block_size": 64,
        "ssm_sizes": (0, 0),
        "attn_backend_name": "A",
        "physical_blocks_per_logical_kv_block": 1,
        "packed_member_layouts": {"0": (0, 1024)},
    }
    worker: Any = object.__new__(NixlPushConnector._worker_class)
    worker._settings = Settings(layout=layout)
    worker.xfer_stats = BlockRowStats()
    worker.xfer_handshake_metadata = NixlHandshakePayload("", msgspec.msgpack.encode(metadata))
    getattr(worker, method)(NixlAgentMetadata(**metadata | {"engine_id": "there"} | peer_differs_in))


@pytest.mark.parametrize("method", ["add_remote_agent", "_add_notif_only_remote_agent"])
def test_both_ends_of_a_push_refuse_a_peer_with_other_rows(call: Call, method: str) -> None:
    other = {"block_lens": [2048], "packed_member_layouts": {"0": (64, 960)}}

    why = _why(call, _meet, method, "BLHNC", other)

    assert why.startswith("HandshakeMismatch: prefill and decode do not agree, nothing is read from peer there")
    assert "1 regions of [1024] bytes here and 1 regions of [2048] bytes at the peer" in why
    assert "('0', [0, 1024])" in why
    assert "('0', [64, 960])" in why


def test_the_default_layout_leaves_all_but_the_layout_to_stock(call: Call) -> None:
    """A peer that differs otherwise reaches stock's own code, which fails on this made-up worker."""
    assert _why(call, _meet, "add_remote_agent", "stock", {"kv_cache_layout": "LBNHC"}).startswith("HandshakeMismatch")
    assert _why(call, _meet, "add_remote_agent", "stock", {"block_size": 128}).startswith("AttributeError")


def _connector_with(site: str) -> Any:
    sys.path.insert(0, site)
    from vllm_blhnc import connector
    from vllm_blhnc.stock import release

    return connector.NixlConnector.__name__, release().rows_need_switch


def test_another_vllm_release_is_refused_with_the_way_to_try_it(call: Call, tmp_path: Path) -> None:
    info = tmp_path / "vllm-0.34.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.34.0\n")

    why = _why(call, _connector_with, str(tmp_path))

    says("start-release", why)
    assert why.startswith("UnsupportedVersion: vllm==0.34.0 is installed")
    assert ">=0.31,<0.34 (tested: 0.31.0, 0.32.0, 0.33.0)" in why.replace("<0.34,>=0.31", ">=0.31,<0.34")
    assert 'STOCKPATCH_ALLOW_UNTESTED="vllm==0.34.0"' in why
    # Allowed by name, it is taken for the nearest release.
    allowed = {"STOCKPATCH_ALLOW_UNTESTED": "vllm==0.34.0"}
    assert call(_connector_with, str(tmp_path), environment=allowed) == ("NixlPullConnector", False)
