from types import SimpleNamespace

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import pull_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker


@pytest.mark.parametrize(("mla", "stages", "rows"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_pull_workers_of_mla_models_register_rows_unless_stages_split_them(mla, stages, rows, monkeypatch):
    seen = []
    monkeypatch.setattr(NixlBaseConnectorWorker, "__init__", lambda self, *unused: seen.append(self._supports_pp_hma))
    config = SimpleNamespace(
        model_config=SimpleNamespace(use_mla=mla), parallel_config=SimpleNamespace(pipeline_parallel_size=stages)
    )
    pull_worker.NixlPullConnectorWorker(config, "engine", None)
    assert seen == [rows]


def worker(rows):
    made = object.__new__(NixlBaseConnectorWorker)
    made._packed_member_layouts = rows
    made._transfer_layer_region_indices = ()
    made._remote_agents = {"peer": {(0, 0): "known"}}
    made._draft_pages = {}
    return made


def peer(rows):
    return SimpleNamespace(engine_id="peer", packed_member_layouts=rows)


def test_a_peer_with_the_same_pages_in_its_rows_is_met():
    rows = {"layers.0": (0, 4096), "layers.1": (4096, 512)}
    assert worker(rows).add_remote_agent(peer(dict(rows))) == "known"


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"layers.0": (0, 4096)}, "1 layers, such as layers.1: None there and (4096, 512) here"),
        ({"layers.0": (0, 4096), "layers.1": (8192, 512)}, "(8192, 512) there and (4096, 512) here"),
        ({}, "2 layers, such as layers.0: None there"),
    ],
)
def test_a_peer_whose_rows_hold_other_pages_is_refused(theirs, says):
    with pytest.raises(RuntimeError) as refused:
        worker({"layers.0": (0, 4096), "layers.1": (4096, 512)}).add_remote_agent(peer(theirs))
    assert says in str(refused.value)


def test_a_worker_without_rows_meets_any_peer():
    assert worker({}).add_remote_agent(peer({"layers.0": (0, 4096)})) == "known"
