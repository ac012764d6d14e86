"""Master and pool of one machine as processes that end with this one, whatever ends it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from mooncake_tier.client.master import Master
from mooncake_tier.client.network import Listener, listeners
from mooncake_tier.errors import NodeFailed, TierUnavailable
from mooncake_tier.node import binding
from mooncake_tier.node.settings import NodeSettings
from mooncake_tier.stock import MOONCAKE, prepare_environment

__all__ = ["Node", "mooncake_folder"]

_PR_SET_PDEATHSIG = 1
_LOG_LINES = 8


def mooncake_folder() -> Path:
    """Where the installed Mooncake's programs are; raises `TierUnavailable` or `stockpatch.UnsupportedVersion`."""
    MOONCAKE.require()
    spec = importlib.util.find_spec("mooncake")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "mooncake_master").exists():
            return Path(place)
    raise TierUnavailable("Mooncake's wheel is installed without its programs. Install it again: pip install --force.")


def _point(link: Path, target: Path) -> None:
    """Let a link name a file in its own folder, whatever it named before."""
    part = link.with_name(f"{link.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    part.symlink_to(target.name)
    part.replace(link)


class Node:
    """The processes of `NodeSettings`.

    logs: folder for their output, and for the library that keeps their ports on `host`. open_ports: let Mooncake's
    transfer ports listen on every interface where that library cannot be made; otherwise that is refused. Not safe to
    use from several threads. Start it from a thread that lives as long as the processes shall: the kernel ends them
    with the thread.
    """

    def __init__(self, settings: NodeSettings, logs: Path, open_ports: bool = False) -> None:
        self.settings, self.logs, self.open_ports = settings, logs, open_ports
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.preload: Path | None = None

    @property
    def master(self) -> Master:
        """The master's HTTP side."""
        return Master(self.settings.address, self.settings.metrics_port)

    def start(self, within_s: float = 90.0) -> None:
        """Start what the settings ask for and return when it serves; raises `NodeFailed`, with nothing left running."""
        mooncake_folder()
        self.logs.mkdir(parents=True, exist_ok=True)
        self.preload = binding.build(self.logs)
        if self.preload is not None:
            _point(self.logs / binding.LIBRARY, self.preload)
        until = time.monotonic() + within_s
        try:
            for name, wanted in (("master", not self.settings.master), ("pool", self.settings.pool_bytes)):
                if wanted:
                    (self.logs / f"{name}.log").unlink(missing_ok=True)
                    self._begin(name, until)
            self._check_ports()
        except BaseException:
            self.stop()
            raise

    def restart(self, name: str, within_s: float = 90.0) -> None:
        """Start a process that has ended again, beside the other; raises `NodeFailed` if it does not serve then."""
        self._begin(name, time.monotonic() + within_s)
        self._check_ports()

    def listening(self) -> list[Listener]:
        """Every TCP port that the processes listen on."""
        return [one for process in self.processes.values() for one in listeners(process.pid)]

    def ended(self) -> dict[str, str]:
        """Processes that ended by themselves, each with what it said last."""
        return {
            name: self._last_words(name, f"ended with exit code {process.returncode}")
            for name, process in self.processes.items()
            if process.poll() is not None
        }

    def stop(self, within_s: float = 5.0) -> None:
        """End the processes, the pool first so that the master learns of it; each by force after `within_s` seconds."""
        for name in reversed(list(self.processes)):
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _begin(self, name: str, until: float) -> None:
        """Start a process and return when it serves."""
        before = self._capacity()
        prepare_environment(self.settings.address)
        env = dict(os.environ)
        if self.preload is not None:
            env |= binding.environment(self.preload, self.settings.address)
        command = {"master": self.settings.master_command, "pool": self.settings.pool_command}[name]
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command(mooncake_folder()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
                preexec_fn=_end_with(os.getpid()),
            )
        serves = self._master_serves if name == "master" else lambda: self._pool_serves(before)
        while not serves():
            if (code := self.processes[name].poll()) is not None:
                raise NodeFailed(self._last_words(name, f"ended with exit code {code}; is a port in use?"))
            if said := [words for other, words in self.ended().items() if other != name]:
                raise NodeFailed(said[0])
            if time.monotonic() > until:
                raise NodeFailed(self._last_words(name, "does not serve in time"))
            time.sleep(0.05)

    def _master_serves(self) -> bool:
        """It says so before it has its RPC port, which another master may hold. A standby has it once it leads."""
        if self.settings.etcd:
            return self.master.answers()
        return self.master.ready() and self._listens("master", self.settings.rpc_port)

    def _capacity(self) -> int | None:
        """Bytes of all pools, if the master that knows is the one here."""
        known = "master" in self.processes and not self.settings.etcd
        return self.master.capacity() if known else None

    def _pool_serves(self, before: int | None) -> bool:
        """The master here counts it; what a master elsewhere counts is not asked, only that the pool listens."""
        if not self._listens("pool", self.settings.pool_port):
            return False
        return before is None or before > 0 or self.master.capacity() > 0

    def _listens(self, name: str, port: int) -> bool:
        return any(one.port == port for one in listeners(self.processes[name].pid))

    def _check_ports(self) -> None:
        everywhere = [str(one) for one in self.listening() if one.everywhere]
        if everywhere and not self.open_ports:
            raise NodeFailed(
                f"Mooncake listens on every interface at {', '.join(everywhere)}, and whoever reaches these ports can "
                f"read and write the pool. Allowed is {self.settings.address} alone: install a C compiler, with which "
                "a small library keeps them there, or put a firewall before them and pass --open-transfer-ports."
            )

    def _last_words(self, name: str, what: str) -> str:
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
        said = "".join(f"\n    {line}" for line in lines) or " it said nothing."
        return f"Mooncake's {name} {what}. Its log, {path}, ends:{said}"


def _end_with(parent: int) -> Callable[[], None]:
    """In a new process: be killed when the parent's thread ends, even if that is killed."""
    libc = ctypes.CDLL(None)

    def settle() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return settle
