"""Settings that cannot work are refused before anything starts; memories, pauses and interfaces as told."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from mooncake_tier.client.connection import StoreAddress
from mooncake_tier.client.network import address_of, listeners
from mooncake_tier.client.pressure import FailedLoads, Pauses
from mooncake_tier.errors import SettingRefused
from mooncake_tier.node.settings import NodeSettings, byte_count
from mooncake_tier.options import Options


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"host": "0.0.0.0"}, "'0.0.0.0': it would open the store"),
        ({"host": "192.0.2.1"}, "no address of this machine"),
        ({"host": "nosuch0"}, "'nosuch0': it is no interface"),
        ({"rpc_port": 0}, "port=0"),
        ({"metrics_port": 70_000}, "port=70000"),
        ({"rpc_port": 9003}, "two cannot share one"),
        ({"pool_bytes": 1 << 20}, "pool_bytes=1048576"),
        ({"pool_bytes": 0, "master": "a:1"}, "nothing would run"),
        ({"lease_s": 0.0}, "lease_s=0.0"),
        ({"owner_ttl_s": 0}, "owner_ttl_s=0"),
        ({"threads": 0}, "threads=0"),
        ({"protocol": "udp"}, "protocol='udp'"),
        ({"master": "nowhere"}, "master='nowhere': the port is missing"),
        ({"etcd": "a"}, "master='etcd://a': the port is missing"),
    ],
)
def test_a_node_that_cannot_work_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingRefused, match=re.escape(message)):
        NodeSettings(**changed)


def test_a_node_listens_where_it_is_told(tmp_path: Path) -> None:
    settings = NodeSettings(host="lo", pool_bytes=1 << 30, lease_s=2.5)

    master, pool = settings.master_command(tmp_path), settings.pool_command(tmp_path)
    assert settings.address == "127.0.0.1"
    assert {"--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--default_kv_lease_ttl=2500"} <= set(master)
    assert {"--host=127.0.0.1", "--global_segment_size=1073741824"} <= set(pool)
    assert "--master_server_address=127.0.0.1:50051" in pool
    assert not any("0.0.0.0" in word or "etcd" in word for word in master + pool)


def test_high_availability_names_etcd_to_master_pool_and_clients(tmp_path: Path) -> None:
    settings = NodeSettings(etcd="127.0.0.1:2379;127.0.0.1:2380")

    master, pool = settings.master_command(tmp_path), settings.pool_command(tmp_path)
    assert {"--enable_ha=true", "--enable_oplog=true", f"--etcd_endpoints={settings.etcd}"} <= set(master)
    assert f"--master_server_address=etcd://{settings.etcd}" in pool
    assert settings.store.master == f"etcd://{settings.etcd}"


@pytest.mark.parametrize(
    ("text", "nbytes"), [("64GiB", 64 << 30), ("512 mib", 512 << 20), ("7", 7), ("1TiB", 1 << 40), ("0", 0)]
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert byte_count(text) == nbytes


@pytest.mark.parametrize("text", ["64GB", "1.5GiB", "", "GiB", "-1", "1 GiB x"])
def test_unclear_sizes_are_refused(text: str) -> None:
    with pytest.raises(SettingRefused, match="size is not clear"):
        byte_count(text)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "*"])
def test_a_client_never_stands_for_every_interface(host: str) -> None:
    with pytest.raises(SettingRefused, match="every interface"):
        StoreAddress(master="127.0.0.1:1", host=host)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lookup_s": 0}, "lookup_s=0"),
        ({"load_s": float("inf")}, "load_s=inf"),
        ({"store_s": True}, "store_s=True"),
        ({"failures": 0}, "failures=0"),
        ({"failures": 1.5}, "failures=1.5"),
        ({"staging_bytes": -1}, "staging_bytes=-1"),
        ({"batch_pieces": 1}, "batch_pieces=1"),
        ({"cooldown_s": 60.0}, "longest_cooldown_s=30.0"),
        ({"checksum": "crc"}, "checksum='crc'"),
    ],
)
def test_a_client_that_cannot_work_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingRefused, match=re.escape(message)):
        Options(**changed)


def test_a_failed_load_is_remembered_for_its_time_or_until_it_is_stored() -> None:
    now = [0.0]
    failed = FailedLoads(10.0, most=3, clock=lambda: now[0])
    failed.add(["a", "b"])
    now[0] = 5.0
    failed.add(["c"])
    failed.forget(["b", "unknown"])

    assert [key in failed for key in "abc"] == [True, False, True]
    now[0] = 10.0
    assert [key in failed for key in "abc"] == [False, False, True]
    failed.add(["d", "e", "f"])  # beyond three the oldest goes
    assert [key in failed for key in "cdef"] == [False, True, True, True]
    assert len(failed) == 3
    assert 7 not in failed


def test_pauses_double_until_something_fits() -> None:
    pauses = Pauses(1.0, 5.0)

    assert [pauses.rejected(False) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert [pauses.rejected(True), pauses.rejected(False)] == [1, 2]
    pauses.accepted()
    assert pauses.rejected(False) == 1


def test_listeners_of_a_process_are_told_apart_by_where_they_listen() -> None:
    import os

    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("0.0.0.0", 0)) as every,
        socket.create_server(("::", 0), family=socket.AF_INET6) as every6,
        socket.create_server(("::ffff:127.0.0.1", 0), family=socket.AF_INET6, dualstack_ipv6=True) as mapped,
    ):
        found = {listener.port: listener for listener in listeners(os.getpid())}
        ports = [held.getsockname()[1] for held in (one, every, every6, mapped)]

    assert [found[port].everywhere for port in ports] == [False, True, True, False]
    assert [found[port].host for port in ports] == ["127.0.0.1", "0.0.0.0", "::", "127.0.0.1"]
    assert (str(found[ports[0]]), str(found[ports[2]])) == (f"127.0.0.1:{ports[0]}", f"[::]:{ports[2]}")
    assert ports[0] not in {one.port for one in listeners(os.getpid())}
    assert listeners(2**22 + 1) == []


def test_interfaces_stand_for_their_address() -> None:
    assert address_of("lo") == address_of("127.0.0.1") == "127.0.0.1"
