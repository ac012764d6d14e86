"""``mooncake-tier`` on real processes: serve, look, empty one namespace, check, and end without a trace."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tier_fields import NAMESPACE, fields
from tier_memory import Memory
from tier_nodes import LEASE_S, client_of, eventually, node_settings, running_node

from glm53.local.processes import free_ports
from mooncake_tier.cli import main
from mooncake_tier.client.connection import StoreAddress, connect, rehearse
from mooncake_tier.client.network import listeners
from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.errors import NodeFailed, TierUnavailable
from mooncake_tier.identity.reports import write_report
from mooncake_tier.keys import block_key
from mooncake_tier.node import binding, doctor
from mooncake_tier.node.processes import Node, mooncake_folder
from mooncake_tier.node.serve import read_state

pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

OTHER = NAMESPACE[:-1] + "0"
COMMAND = [sys.executable, "-m", "mooncake_tier.cli", "serve", "--json", "--pool", "64MiB", "--owner-ttl", "2"]


@contextmanager
def _serving(run_dir: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    rpc, metrics, pool = map(str, free_ports(3, "127.0.0.1"))
    command = [*COMMAND, "--run-dir", str(run_dir), "--rpc-port", rpc, "--metrics-port", metrics, "--pool-port", pool]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    run_dir = tmp_path_factory.mktemp("served")
    with _serving(run_dir) as (_, state):
        yield run_dir, state


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_served_listens_on_one_address(served: tuple[Path, dict[str, Any]]) -> None:
    """Mooncake 0.3.13 by itself opens its transfer ports on every interface."""
    _, state = served

    found = [one for pid in state["processes"].values() for one in listeners(pid)]
    assert {one.host for one in found} == {"127.0.0.1"}
    assert len(found) == 5  # RPC and metrics of the master; RPC, handshakes and data of the pool


def test_flush_empties_one_namespace_and_stats_count_them(
    served: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, state = served
    address = StoreAddress(master=state["master"], host=state["host"])
    memory = Memory(4000)
    keys = {space: [block_key(space, n.to_bytes(32, "big")) for n in range(3)] for space in (NAMESPACE, OTHER)}
    with caplog.at_level("WARNING", "mooncake_tier"):
        client = connect(address, NAMESPACE)
    client.register(memory.address, memory.size)
    for names in keys.values():
        blocks = [Block.at(name, *memory.part(0, 1000)) for name in names]
        assert client.store(blocks).wait() == [Outcome.OK] * 3
    assert client.lookup(keys[NAMESPACE], 20) == [True] * 3  # and with it a lease

    assert main(["stats", "--run-dir", str(run_dir), "--json", "--namespaces"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["flush", "--run-dir", str(run_dir), "--json", "--namespace", NAMESPACE]) == 0
    flushed = json.loads(capsys.readouterr().out)
    found = [client.lookup(names, 20) for names in keys.values()]
    assert client.close(30)

    assert "Mooncake listens on every interface at" in caplog.text  # this process was started without the library
    assert (before["keys"], before["capacity_bytes"]) == (6, 64 << 20)
    assert before["namespaces"] == {NAMESPACE: 3, OTHER: 3}
    assert flushed == {"namespace": NAMESPACE, "removed": 3}
    assert found == [[False] * 3, [True] * 3]
    assert main(["stats", "--run-dir", str(run_dir)]) == 0
    assert "capacity_bytes   67,108,864" in capsys.readouterr().out


def test_the_doctor_asks_the_store_and_compares_the_workload(
    served: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, state = served
    stock = doctor._running
    mine = set(state["processes"].values())
    # Of this machine's Mooncakes only the one that is served here.
    monkeypatch.setattr(doctor, "_running", lambda: {pid: words for pid, words in stock().items() if pid in mine})

    assert main(["doctor", "--run-dir", str(run_dir)]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out == "no finding; the store answers\n"
    assert main(["doctor", "--run-dir", str(run_dir), "--json", "--tokens", "146000", "--lease", "1"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["code"] for one in found] == ["lease-short", "pool-small"]


def test_the_doctor_names_a_store_that_does_not_answer_and_workers_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(tmp_path / "reports", "a", fields())
    write_report(tmp_path / "reports", "b", fields(cache_dtype="bf16"))
    [port] = free_ports(1, "127.0.0.1")

    options = ["--metrics", f"127.0.0.1:{port}", "--report", str(tmp_path / "reports"), "--run-dir", str(tmp_path)]
    assert main(["doctor", *options]) == 1
    said = capsys.readouterr().out
    assert "store-unreachable" in said
    assert "keys-differ\n  seen:   cache_dtype is 'fp8' and 'bf16'" in said


def test_a_second_server_in_the_folder_is_refused(
    served: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--run-dir", str(served[0])]) == 1
    assert f"process {served[1]['pid']} already serves" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--host", "0.0.0.0"], "on every interface"),
        (["serve", "--pool", "64GB"], "size is not clear"),
        (["flush", "--namespace", "mt1-12"], "namespace='mt1-12'"),
        (["stats", "--metrics", "127.0.0.1"], "the port is missing"),
    ],
)
def test_wrong_usage_is_told(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--run-dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stats", "flush"])
def test_without_a_master_nothing_is_asked(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--namespace", NAMESPACE] if command == "flush" else []
    assert main([command, *more, "--run-dir", str(tmp_path)]) == 1
    assert "no master is named" in capsys.readouterr().err


def test_a_master_that_is_silent_is_refused_without_freezing_this_process() -> None:
    """Mooncake's own set-up would hold the interpreter's lock for 90 s (0.3.13)."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = StoreAddress(master=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TierUnavailable, match="did not answer within 1.0 s"):
            connect(address, NAMESPACE, within_s=1.0)


def test_a_closed_port_is_told_at_once() -> None:
    """Mooncake's own set-up would knock for 90 s (0.3.13)."""
    [port] = free_ports(1, "127.0.0.1")

    for master in (f"127.0.0.1:{port}", f"etcd://127.0.0.1:{port}"):
        with pytest.raises(TierUnavailable, match=f"no connection to 127.0.0.1:{port} .Connection refused"):
            rehearse(StoreAddress(master=master))


def test_sigterm_ends_everything_and_leaves_no_note(tmp_path: Path) -> None:
    with _serving(tmp_path) as (process, state):
        process.terminate()
        assert process.wait(60) == 0
        assert not any(map(_alive, state["processes"].values()))
        assert not (tmp_path / "node.json").exists()


def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    with _serving(tmp_path) as (process, state):
        process.kill()
        eventually(lambda: not any(map(_alive, state["processes"].values())))
        assert (tmp_path / "node.json").exists()  # and a note that nobody believes
        assert main(["stats", "--run-dir", str(tmp_path)]) == 1


def test_a_process_that_ends_is_named_and_started_again_until_it_is_too_often(tmp_path: Path) -> None:
    with _serving(tmp_path) as (process, state):
        for name in ("master", "pool", "pool"):
            before = read_state(tmp_path)
            assert before is not None
            os.kill(before["processes"][name], signal.SIGKILL)
            eventually(lambda: read_state(tmp_path) != before)  # noqa: B023
        mended = read_state(tmp_path)
        assert mended is not None
        assert not set(mended["processes"].values()) & set(state["processes"].values())
        rehearse(StoreAddress(master=mended["master"]))
        os.kill(mended["processes"]["master"], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert said.count("starting it again") == 3
        assert "Mooncake's master ended with exit code -9" in said
        assert "It is the 4th end within 60 s: given up." in said
        assert not any(map(_alive, mended["processes"].values()))


def test_without_a_compiler_open_ports_are_refused_unless_they_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "build", lambda folder: None)
    refused = Node(node_settings(), tmp_path)

    with pytest.raises(NodeFailed, match=r"every interface at .*0\.0\.0\.0:\d+.*--open-transfer-ports"):
        refused.start()
    assert refused.processes == {}
    accepted = Node(node_settings(), tmp_path, open_ports=True)
    accepted.start()
    open_ports = {str(one) for one in accepted.listening() if one.everywhere}
    pids = {process.pid for process in accepted.processes.values()}
    stock = doctor._running
    monkeypatch.setattr(doctor, "_running", lambda: {pid: words for pid, words in stock().items() if pid in pids})
    facts = doctor.collect()
    accepted.stop()
    assert open_ports
    assert set(facts.everywhere) == open_ports
    assert facts.lease_s == LEASE_S


def test_the_doctor_names_libraries_that_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mooncake's master, taken out of the folder where its own libraries lie."""
    place = tmp_path / "mooncake"
    place.mkdir()
    (place / "__init__.py").touch()
    shutil.copy(mooncake_folder() / "mooncake_master", place)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)])
    )

    missing = doctor.missing_libraries()
    assert any(name.startswith("libglog") for name in missing)
    assert set(missing.values()) == {"mooncake_master"}


def test_a_port_in_use_is_named_with_the_programs_own_words(tmp_path: Path) -> None:
    with running_node(tmp_path / "one") as one:
        second = Node(node_settings(rpc_port=one.settings.rpc_port), tmp_path / "two")
        with pytest.raises(NodeFailed, match="Mooncake's master .*is a port in use?"):
            second.start()
        assert second.processes == {}
        with client_of(one, NAMESPACE) as client:
            assert client.lookup(["x"]) == [False]
        rehearse(one.settings.store)
