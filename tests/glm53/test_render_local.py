"""The local renderer: pure, loopback only, and equal where prefill and decode must be equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm53.deployment import Deployment, DeploymentError, parse
from glm53.render.local import Ports, Process, port_runs, render, worker, worker_ports

RUN = Path("/run-dir")


def _deployment(**overrides: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "small",
        "model": {"path": "model", "served_name": "tiny"},
        "workers": {"prefill": 2, "decode": 3},
    }
    return parse(raw | overrides)


def _rendered(deployment: Deployment) -> dict[str, Process]:
    count = sum(port_runs(deployment))
    processes = render(deployment, Ports(8000, tuple(range(9000, 9000 + count))), RUN, "python")
    return {process.name: process for process in processes}


def _option(process: Process, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def test_every_role_gets_its_number_of_workers() -> None:
    names = list(_rendered(_deployment()))

    assert names == ["broker", "frontend", "prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]


def test_rendering_twice_gives_the_same() -> None:
    assert _rendered(_deployment()) == _rendered(_deployment())


def test_no_two_processes_share_a_port() -> None:
    processes = _rendered(_deployment()).values()
    ports = [
        value
        for process in processes
        for key, value in process.env.items()
        if key in ("DYN_SYSTEM_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT")
    ]
    ports += [address.rpartition(":")[2] for address in _rendered(_deployment())["broker"].argv[-2:]]

    assert len(ports) == len(set(ports)) == sum(port_runs(_deployment()))


def test_the_plugins_frontend_reads_calls_itself_so_its_workers_announce_no_parsers() -> None:
    stock = _rendered(_deployment())
    ours = _rendered(_deployment(tools={"frontend": "structural_tags"}))

    assert stock["frontend"].argv[:3] == ("python", "-m", "dynamo.frontend")
    assert ours["frontend"].argv[:3] == ("python", "-m", "dynamo_structural_tags.frontend")
    assert ours["frontend"].argv[3:] == stock["frontend"].argv[3:]
    parsers = ("--dyn-tool-call-parser", "--dyn-reasoning-parser")
    assert [name in stock["decode-0"].argv for name in parsers] == [True, True]
    assert [name in ours["decode-0"].argv for name in parsers] == [False, False]


def test_the_plugins_frontend_is_for_the_local_stack() -> None:
    with pytest.raises(DeploymentError, match=r"tools\.frontend: .*Use stock, or target local\."):
        _deployment(tools={"frontend": "structural_tags"}, targets=["local", "slurm"])


def test_every_worker_gets_the_cache_dtype_once_and_the_policy_of_its_rows() -> None:
    engine = {"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_policy": "rtn"}
    for workers in ({"prefill": 1, "decode": 2}, {"aggregated": 1}):
        rendered = _rendered(_deployment(workers=workers, engine=engine))
        for name in set(rendered) - {"broker", "frontend"}:
            assert rendered[name].argv.count("--kv-cache-dtype") == 1
            assert _option(rendered[name], "--kv-cache-dtype") == "nvfp4_ds_mla"
            assert rendered[name].env["FLASHINFER_NVFP4_POLICY"] == "rtn"

    plain = _rendered(_deployment())["decode-0"]
    assert _option(plain, "--kv-cache-dtype") == "auto"
    assert "FLASHINFER_NVFP4_POLICY" not in plain.env


def test_the_policys_variable_is_the_plugins() -> None:
    from typing import get_args

    from flashinfer_nvfp4.policy import POLICIES, SETTING
    from glm53.deployment import Engine

    assert SETTING == "FLASHINFER_NVFP4_POLICY"
    assert get_args(get_args(Engine.model_fields["nvfp4_policy"].annotation)[0]) == POLICIES


def test_refuses_too_few_ports() -> None:
    deployment = _deployment()
    with pytest.raises(ValueError, match="small needs 12 ports, got 11"):
        render(deployment, Ports(8000, tuple(range(11))), RUN, "python")


def test_all_addresses_are_loopback() -> None:
    for process in _rendered(_deployment()).values():
        text = json.dumps([process.argv, process.env])
        assert "0.0.0.0" not in text
        assert "tcp://*" not in text
        for host in ("DYN_SYSTEM_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"):
            assert process.env[host] == "127.0.0.1"


def test_prefill_and_decode_agree_on_everything_but_their_role() -> None:
    def shared(process: Process) -> tuple[list[str], dict[str, Any]]:
        transfer = json.loads(_option(process, "--kv-transfer-config"))
        del transfer["kv_role"], transfer["kv_connector_extra_config"]["blhnc"]["transfer_log"]
        argv = list(process.argv)
        for name in ("--disaggregation-mode", "--kv-transfer-config", "--kv-events-config"):
            if name in argv:
                at = argv.index(name)
                del argv[at : at + 2]
        return argv, transfer

    rendered = _rendered(_deployment())

    assert shared(rendered["prefill-0"]) == shared(rendered["decode-2"])
    assert json.loads(_option(rendered["prefill-0"], "--kv-transfer-config"))["kv_role"] == "kv_producer"
    assert json.loads(_option(rendered["decode-0"], "--kv-transfer-config"))["kv_role"] == "kv_consumer"


def test_the_connector_keeps_its_name_and_failed_loads_fail_the_request() -> None:
    transfer = json.loads(_option(_rendered(_deployment())["decode-0"], "--kv-transfer-config"))

    assert transfer["kv_connector"] == "NixlConnector"
    assert transfer["kv_connector_module_path"] == "vllm_blhnc.connector"
    assert transfer["kv_load_failure_policy"] == "fail"


def test_the_connector_settings_are_ones_the_plugin_knows() -> None:
    from vllm_blhnc.settings import Settings

    transfer = json.loads(_option(_rendered(_deployment())["decode-0"], "--kv-transfer-config"))
    settings = Settings.read(transfer["kv_connector_extra_config"])

    assert settings == Settings("BLHNC", str(RUN / "transfers-decode-0.jsonl"), 1000)


def test_kv_events_bind_a_socket_so_that_the_router_hears_them() -> None:
    """vLLM binds ipc and wildcard addresses only; it connects, and publishes to nobody, for a plain tcp one."""
    rendered = _rendered(_deployment())
    endpoint = json.loads(_option(rendered["prefill-1"], "--kv-events-config"))["endpoint"]

    assert endpoint == f"ipc://{RUN}/prefill-1.events.tcp:1"
    assert "--kv-events-config" not in rendered["decode-0"].argv


def test_an_aggregated_worker_moves_no_kv() -> None:
    worker = _rendered(_deployment(workers={"aggregated": 1}))["aggregated-0"]

    assert "--kv-transfer-config" not in worker.argv
    assert "--disaggregation-mode" not in worker.argv
    assert worker.transfer_log is None


def test_the_layout_reaches_the_connector() -> None:
    rendered = _rendered(_deployment(kv_transfer={"layout": "stock"}))
    transfer = json.loads(_option(rendered["prefill-0"], "--kv-transfer-config"))

    assert transfer["kv_connector_extra_config"]["blhnc"]["layout"] == "stock"


def test_the_block_allocation_reaches_the_connector() -> None:
    rendered = _rendered(_deployment(kv_transfer={"block_allocation": "runs", "eviction_window": 8}))

    for role in ("prefill-0", "decode-0"):
        transfer = json.loads(_option(rendered[role], "--kv-transfer-config"))
        settings = transfer["kv_connector_extra_config"]["blhnc"]
        assert (settings["block_allocation"], settings["eviction_window"]) == ("runs", 8)


TIER = {"memory": "1GiB", "buffer": "64MiB", "protocol": "tcp", "chunk_tokens": 256}


def test_a_tier_starts_before_the_workers_and_only_prefill_knows_it() -> None:
    rendered = _rendered(_deployment(tier=TIER))
    names = list(rendered)

    assert names.index("tier") < names.index("prefill-0")
    tier = rendered["tier"]
    assert tier.ready_file == RUN / "tier" / "node.json"
    assert _option(tier, "--host") == "127.0.0.1"
    assert _option(tier, "--pool") == "1024MiB"
    calls, metrics = (f"127.0.0.1:{_option(tier, name)}" for name in ("--rpc-port", "--metrics-port"))
    for name in ("prefill-0", "prefill-1"):
        config = json.loads(_option(rendered[name], "--kv-transfer-config"))
        assert config["kv_connector"] == "MultiConnector"
        assert config["kv_load_failure_policy"] == "recompute"
        _, offload = config["kv_connector_extra_config"]["connectors"]
        extra = offload["kv_connector_extra_config"]
        assert (extra["cpu_bytes_to_use"], extra["block_size"]) == (64 << 20, 256)
        assert (extra["mooncake_tier"]["master"], extra["mooncake_tier"]["metrics"]) == (calls, metrics)
        assert rendered[name].env["LD_PRELOAD"] == str(RUN / "tier" / "bind_here.so")
        assert rendered[name].env["MOONCAKE_TIER_BIND"] == "127.0.0.1"
    decode = rendered["decode-0"]
    assert json.loads(_option(decode, "--kv-transfer-config"))["kv_connector"] == "NixlConnector"
    assert "LD_PRELOAD" not in decode.env


def test_a_further_worker_finds_the_tier_that_runs() -> None:
    deployment = _deployment(tier=TIER)
    first = _rendered(deployment)["prefill-0"]
    ports = [_option(_rendered(deployment)["tier"], name) for name in ("--rpc-port", "--metrics-port", "--pool-port")]
    further = worker(deployment, "prefill", 7, Ports(8000, (9000, 9001, 9100, 9101, *map(int, ports))), RUN, "python")

    assert further.name == "prefill-7"
    seen = [json.loads(_option(one, "--kv-transfer-config")) for one in (first, further)]
    assert (
        seen[0]["kv_connector_extra_config"]["connectors"][1] == seen[1]["kv_connector_extra_config"]["connectors"][1]
    )


SPREAD = {"prefill": {"data_parallel": 2, "expert_parallel": True}, "decode": {"tensor_parallel": 2}}


def test_data_parallel_ranks_have_a_port_each_for_handshakes_and_a_socket_each_for_events() -> None:
    """vLLM adds the rank to the handshake's port and to the number at the end of the events' address."""
    deployment = _deployment(roles=SPREAD)
    rendered = _rendered(deployment)

    taken = [int(rendered[f"prefill-{n}"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) + rank for n in (0, 1) for rank in (0, 1)]
    taken += [int(rendered[f"decode-{n}"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) for n in (0, 1, 2)]
    taken += [int(rendered[name].env["DYN_SYSTEM_PORT"]) for name in rendered if name not in ("broker", "frontend")]
    groups = {name: int(one.env["VLLM_PORT"]) for name, one in rendered.items() if "VLLM_PORT" in one.env}
    assert sorted(groups) == ["prefill-0", "prefill-1"], "vLLM takes five ports, counted up, for its ranks' groups"
    taken += [first + number for first in groups.values() for number in range(5)]
    assert len(taken) == len(set(taken)) == 4 + 3 + 5 + 2 * 5
    assert port_runs(deployment) == (1, 1, 8, 8, 2, 2, 2)
    assert worker_ports(deployment, "prefill") == 8
    address = json.loads(_option(rendered["prefill-0"], "--kv-events-config"))["endpoint"]
    base, _, number = address.rpartition(":")
    assert "tcp" in base
    assert number == "1"


def test_parallelism_reaches_the_engines_of_its_role() -> None:
    rendered = _rendered(_deployment(roles=SPREAD))

    assert _option(rendered["prefill-0"], "--data-parallel-size") == "2"
    assert "--enable-expert-parallel" in rendered["prefill-0"].argv
    assert "--tensor-parallel-size" not in rendered["prefill-0"].argv
    assert _option(rendered["decode-0"], "--tensor-parallel-size") == "2"
    assert not {"--data-parallel-size", "--enable-expert-parallel"} & set(rendered["decode-0"].argv)
