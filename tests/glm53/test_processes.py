"""Process groups: started apart, recognised, and ended with everything below them."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from glm53.local.processes import Started, end, free_port_runs, free_ports, memory_bytes, port_is_free, start, tail

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=False)
print(child.pid, flush=True)
time.sleep(600)
"""


def _wait_for_text(log: Path) -> str:
    for _ in range(200):
        if log.exists() and (text := log.read_text()).strip():
            return text
        time.sleep(0.05)
    raise AssertionError(f"{log} stayed empty")


def _gone(pid: int) -> bool:
    """Ended; a zombie whose new parent does not collect it counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_that_ignores_the_request_is_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "stubborn.log"
    started = start("stubborn", [sys.executable, "-c", STUBBORN], {}, log)
    child = int(_wait_for_text(log))
    assert started.alive()
    assert memory_bytes(started) > 1 << 20

    killed = end([started], patience_s=0.5)

    assert killed == ["stubborn"]
    assert not started.alive()
    assert _gone(child)


def test_children_of_a_dead_leader_are_ended_too(tmp_path: Path) -> None:
    log = tmp_path / "orphan.log"
    code = (
        "import subprocess, sys;"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
    )
    started = start("orphan", [sys.executable, "-c", code], {}, log)
    child = int(_wait_for_text(log))
    for _ in range(100):
        if not started.alive():
            break
        time.sleep(0.05)
    assert not started.alive()
    assert psutil.pid_exists(child)

    end([started])

    assert _gone(child)


def test_another_process_with_the_same_id_is_left_alone() -> None:
    me = psutil.Process()
    earlier = Started("other", me.pid, me.create_time() - 1000, "")

    assert not earlier.alive()


def test_the_environment_is_added_to_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_CALLER", "1")
    log = tmp_path / "env.log"
    code = "import os; print(os.environ['FROM_CALLER'], os.environ['ADDED'])"
    started = start("env", [sys.executable, "-c", code], {"ADDED": "2"}, log)

    assert _wait_for_text(log).split() == ["1", "2"]
    end([started])


def test_free_ports_differ_and_fit_a_signed_16_bit_number() -> None:
    """Dynamo 1.6.1 reads DYN_SYSTEM_PORT as i16 and refuses to start above 32767."""
    ports = free_ports(20, "127.0.0.1")

    assert len(set(ports)) == 20
    assert max(ports) <= 32767


def test_runs_of_ports_are_consecutive_free_and_do_not_overlap() -> None:
    lengths = (1, 5, 1, 5)
    ports = free_port_runs(lengths, "127.0.0.1")

    assert len(set(ports)) == sum(lengths)
    for run in (ports[1:6], ports[7:12]):
        assert list(run) == list(range(run[0], run[0] + 5))
        assert max(run) <= 32767
        with socket.socket() as server:
            server.bind(("127.0.0.1", run[2]))
            server.listen()
            assert run[2] not in free_port_runs([3] * 300, "127.0.0.1")
    with pytest.raises(RuntimeError, match=r"0 ports were found free from \d{5} to \d{5}, and 20000 are needed"):
        free_port_runs([20_000], "127.0.0.1")


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]

        assert not port_is_free(port, "127.0.0.1")
    assert port_is_free(port, "127.0.0.1")


def test_the_end_of_a_log_is_shown_whatever_is_in_it(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log) == "(no log: No such file or directory)"
    log.write_bytes(b"")
    assert tail(log) == "(the log is empty)"
    log.write_bytes(b"a\nb\xff\nc\n")
    assert tail(log, 2) == "b\ufffd\nc"


SHARING = """
import signal, sys, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None  # nobody but the process itself would remove it
shared = shared_memory.SharedMemory(sys.argv[1], create=sys.argv[2] == "create", size=4096)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("shared", flush=True)
time.sleep(600)
"""


def test_shared_memory_of_a_killed_process_goes_unless_another_has_it(tmp_path: Path) -> None:
    name = f"glm53-test-{os.getpid()}"
    file = Path("/dev/shm") / name
    both = []
    for number, how in enumerate(("create", "attach")):
        log = tmp_path / f"{number}.log"
        both.append(start(how, [sys.executable, "-c", SHARING, name, how], {}, log))
        assert "shared" in _wait_for_text(log)
    try:
        assert end(both[:1], patience_s=0.1) == ["create"]
        assert file.exists(), "the other process still has it"
        assert end(both[1:], patience_s=0.1) == ["attach"]
        assert not file.exists()
    finally:
        end(both, patience_s=0.1)
        file.unlink(missing_ok=True)
