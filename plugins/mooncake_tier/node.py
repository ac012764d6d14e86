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

from mooncake_tier import binding
from mooncake_tier.errors import NodeFailed, TierUnavailable
from mooncake_tier.master import Master
from mooncake_tier.network import Listener, listeners
from mooncake_tier.settings import NodeSettings
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

    def start(self, within_s: float = 30.0) -> None:
        """Start what the settings ask for and return when it serves; raises `NodeFailed`, with nothing left running."""
        package, until = mooncake_folder(), time.monotonic() + within_s
        self.logs.mkdir(parents=True, exist_ok=True)
        self.preload = binding.build(self.logs)
        try:
            if not self.settings.master:
                self._begin("master", self.settings.master_command(package))
                self._until(lambda: self.master.ready() or bool(self.settings.etcd), until, "master")
            if self.settings.pool_bytes:
                before = self.master.capacity()
                self._begin("pool", self.settings.pool_command(package))
                if self.settings.master or self.settings.etcd:
                    self._until(
                        lambda: any(one.port == self.settings.pool_port for one in self.listening()), until, "pool"
                    )
                else:
                    self._until(lambda: self.master.capacity() > before, until, "pool")
            self._check_ports()
        except BaseException:
            self.stop()
            raise

    def listening(self) -> list[Listener]:
        """Every TCP port that the processes listen on."""
        return [one for process in self.processes.values() for one in listeners(process.pid)]

    def _pool_listens(self) -> bool:
        """What can be seen of a pool whose master is elsewhere."""
        elsewhere = bool(self.settings.master or self.settings.etcd)
        return elsewhere and any(one.port == self.settings.pool_port for one in self.listening())

    def ended(self) -> str | None:
        """What a process that ended by itself said last; None while all run."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                return self._last_words(name, f"ended with exit code {process.returncode}")
        return None

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

    def _begin(self, name: str, command: list[str]) -> None:
        prepare_environment(self.settings.address)
        env = dict(os.environ)
        if self.preload is not None:
            env |= binding.environment(self.preload, self.settings.address)
        with (self.logs / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
                preexec_fn=_end_with(os.getpid()),
            )

    def _until(self, condition: Callable[[], bool], until: float, name: str) -> None:
        while not condition():
            if (said := self.ended()) is not None:
                raise NodeFailed(said)
            if time.monotonic() > until:
                raise NodeFailed(self._last_words(name, "does not serve in time"))
            time.sleep(0.05)

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
        return f"Mooncake's {name} {what}. A port may be in use, or the pool too large. Its log, {path}, ends:{said}"


def _end_with(parent: int) -> Callable[[], None]:
    """In a new process: be killed when the parent's thread ends, even if that is killed."""
    libc = ctypes.CDLL(None)

    def settle() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return settle
