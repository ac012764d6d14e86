"""A running deployment: brought up with health waits, remembered in a state file, ended completely."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from glm53.deployment import Deployment
from glm53.local.processes import Started, end, free_port_runs, memory_bytes, port_is_free, start, tail
from glm53.render.local import LOOPBACK, Ports, Process, port_runs, render, shared_ports

__all__ = ["Progress", "Stack", "StackError", "State", "clean", "report", "running_stack"]

Progress = Callable[[str], None]

# A Unix socket's path holds 107 bytes; the longest name the renderer puts into the folder is this one.
_LONGEST_RUN_DIR = 107 - len("/aggregated-99.events.tcp:64")
_STATE = "state.json"


class StackError(RuntimeError):
    """The stack could not be brought up or broke; the message names the process and its last log lines."""


@dataclass(frozen=True)
class State:
    """What other commands need to know about a stack, as written to its state file.

    fingerprint: the deployment's. broker: ports for publishers and for subscribers. tier: the DRAM tier's.
    """

    deployment: str
    model: str
    url: str
    started_at: float
    processes: tuple[Started, ...]
    fingerprint: str = ""
    broker: tuple[int, ...] = ()
    tier: tuple[int, ...] = ()

    @classmethod
    def read(cls, run_dir: Path) -> State | None:
        """The state in `run_dir`, or None if nothing runs there. Raises StackError if it is unreadable."""
        try:
            raw = json.loads((run_dir / _STATE).read_text(encoding="utf-8"))
            processes = tuple(Started(**item) for item in raw["processes"])
            return cls(
                **{
                    **raw,
                    "processes": processes,
                    "broker": tuple(raw.get("broker", ())),
                    "tier": tuple(raw.get("tier", ())),
                }
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise StackError(
                f"{run_dir / _STATE} is damaged ({error}), so the processes it names are unknown. Look for them "
                "with `ps -ef | grep dynamo`, end them, and delete the file."
            ) from error

    def write(self, run_dir: Path) -> None:
        """Replace the state file in one step."""
        temporary = run_dir / f"{_STATE}.new"
        temporary.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        os.replace(temporary, run_dir / _STATE)


class Stack:
    """One deployment's processes on this machine.

    run_dir: folder for logs, sockets and state. python: interpreter that has vLLM and Dynamo.
    http_port: the frontend's port; None picks a free one.
    """

    def __init__(
        self,
        deployment: Deployment,
        run_dir: Path,
        *,
        http_port: int | None = None,
        python: str = sys.executable,
    ) -> None:
        self.deployment = deployment
        self.run_dir = run_dir.resolve()
        self._http_port = http_port
        self._python = python
        self._processes: list[Process] = []
        self._started: list[Started] = []
        self._broker: tuple[int, ...] = ()
        self._tier: tuple[int, ...] = ()
        self.url = ""

    def up(self, progress: Progress, timeout_s: float = 600.0, *, replace: bool = False) -> None:
        """Start everything and return once a request has been answered.

        replace: end what still runs in the run directory; otherwise that is refused. Ends what it started if
        anything fails or the wait is interrupted. Raises StackError.
        """
        self._refuse_bad_place()
        if self._http_port is not None:
            _refuse_taken(self._http_port)
        state = State.read(self.run_dir)
        if state and not replace and (alive := [one.name for one in state.processes if one.alive()]):
            raise StackError(
                f"{state.deployment} already runs in {self.run_dir} ({', '.join(alive)}), and its processes would be "
                f"lost. End it first (glm53 down --run-dir {self.run_dir}), or choose another --run-dir."
            )
        clean(self.run_dir, progress)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        for old in [*self.run_dir.glob("*.log"), *self.run_dir.glob("*.jsonl"), *self.run_dir.glob("*.events.*")]:
            old.unlink()
        internal = free_port_runs((*port_runs(self.deployment), 1), LOOPBACK)
        http = internal[-1] if self._http_port is None else self._http_port
        self.url = f"http://{LOOPBACK}:{http}"
        self._broker, self._tier = shared_ports(self.deployment, internal)
        self._processes = render(self.deployment, Ports(http, internal[:-1]), self.run_dir, self._python)
        try:
            for process in self._processes:
                self._started.append(start(process.name, process.argv, process.env, self._log(process.name)))
                self._remember()
                self._wait_for_file(process, time.monotonic() + timeout_s)
            self._wait_ready(progress, time.monotonic() + timeout_s)
            self._prove(progress)
        except BaseException:
            self.down(progress)
            raise

    def down(self, progress: Progress) -> None:
        """End all processes of this stack; harmless when repeated."""
        if self._started:
            killed = end(self._started)
            progress(f"{self.deployment.name}: stopped" + (f", {', '.join(killed)} had to be killed" if killed else ""))
        self._started = []
        (self.run_dir / _STATE).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise StackError if a process has died."""
        for started in self._started:
            if not started.alive():
                raise StackError(_death(started))

    def transfers(self) -> list[dict[str, Any]]:
        """All KV transfers so far, in the order in which each worker finished them."""
        found = []
        for process in self._processes:
            if process.transfer_log and process.transfer_log.exists():
                found += [json.loads(line) for line in process.transfer_log.read_text().splitlines()]
        return found

    def status_url(self, name: str) -> str:
        """Where a worker tells its health and metrics."""
        url = next(process.ready_url for process in self._processes if process.name == name)
        assert url is not None
        return url.removesuffix("/health")

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to talk to this stack over Dynamo's request plane."""
        return next(process.env for process in self._processes if process.role == "frontend")

    @property
    def started(self) -> tuple[Started, ...]:
        """The processes that were started."""
        return tuple(self._started)

    def _log(self, name: str) -> Path:
        return self.run_dir / f"{name}.log"

    def _remember(self) -> None:
        State(
            self.deployment.name,
            self.deployment.model.served_name,
            self.url,
            time.time(),
            tuple(self._started),
            self.deployment.fingerprint,
            self._broker,
            self._tier,
        ).write(self.run_dir)

    def _refuse_bad_place(self) -> None:
        if self.run_dir.exists() and not self.run_dir.is_dir():
            raise StackError(f"run directory {self.run_dir} is a file. Choose a folder with --run-dir.")
        if len(os.fsencode(self.run_dir)) > _LONGEST_RUN_DIR:
            raise StackError(
                f"run directory {self.run_dir} is {len(os.fsencode(self.run_dir))} bytes long, but the sockets in "
                f"it allow {_LONGEST_RUN_DIR}. Choose a shorter one with --run-dir."
            )

    def _wait_for_file(self, process: Process, deadline: float) -> None:
        while process.ready_file is not None and not process.ready_file.exists():
            self.check()
            if time.monotonic() > deadline:
                raise StackError(f"{process.name} not ready in time:\n{tail(self._log(process.name))}")
            time.sleep(0.1)

    def _wait_ready(self, progress: Progress, deadline: float) -> None:
        began = time.monotonic()
        waiting = {process.name: process.ready_url for process in self._processes if process.ready_url}
        progress(f"{self.deployment.name}: starting {', '.join(waiting)}")
        reported = 0.0
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while waiting or not self._serves_model(client):
                self.check()
                for name, url in list(waiting.items()):
                    if _answers(client, url):
                        del waiting[name]
                        progress(f"{self.deployment.name}: {name} ready after {time.monotonic() - began:.0f} s")
                if time.monotonic() > deadline:
                    late = ", ".join(waiting) or "the model's registration"
                    logs = "\n".join(f"--- {name}\n{tail(self._log(name))}" for name in waiting or ["frontend"])
                    raise StackError(f"{late} not ready in time; last log lines:\n{logs}")
                if time.monotonic() - began - reported >= 15:
                    reported = time.monotonic() - began
                    progress(f"{self.deployment.name}: waiting for {', '.join(waiting)} ({reported:.0f} s)")
                time.sleep(0.3)

    def _serves_model(self, client: httpx.Client) -> bool:
        try:
            listed = client.get(f"{self.url}/v1/models").json()
        except (httpx.HTTPError, ValueError):
            return False
        return self.deployment.model.served_name in [item["id"] for item in listed.get("data", [])]

    def _prove(self, progress: Progress) -> None:
        """Answer one request; with separate roles, see that its KV really moved.

        Dynamo serves a request on the decode worker alone while it has not seen the prefill worker yet, so
        being healthy is not being disaggregated.
        """
        block = self.deployment.engine.block_size
        for attempt in range(1, 11):
            self.check()
            prompt = f"warm-up {attempt} " + "x" * (2 * block)
            answer = httpx.post(
                f"{self.url}/v1/chat/completions",
                json={
                    "model": self.deployment.model.served_name,
                    "messages": [{"role": "user", "content": prompt}],
                    "max_tokens": 2,
                },
                timeout=120.0,
                trust_env=False,
            )
            if answer.status_code == 200 and (not self.deployment.disaggregated or self.transfers()):
                progress(f"{self.deployment.name}: serving at {self.url}/v1")
                return
            time.sleep(1.0)
        raise StackError(
            f"the warm-up request got HTTP {answer.status_code} and {len(self.transfers())} KV transfers; expected "
            f"200 and at least one. Answer: {answer.text[:500]}\n"
            + "\n".join(f"--- {one.name}\n{tail(one.log)}" for one in self._started if one.name != "broker")
        )


def _refuse_taken(port: int) -> None:
    if not port_is_free(port, LOOPBACK):
        raise StackError(
            f"port {port} on {LOOPBACK} is in use, so the frontend cannot listen there. Stop what uses it "
            "(`ss -ltnp` tells), choose another with --port, or leave --port out for a free one."
        )


def clean(run_dir: Path, progress: Progress) -> bool:
    """End what an earlier run left in `run_dir`; returns whether there was anything."""
    state = State.read(run_dir)
    if state is None:
        return False
    end(state.processes)
    (run_dir / _STATE).unlink(missing_ok=True)
    progress(f"{state.deployment}: ended {len(state.processes)} process(es)")
    return True


def report(run_dir: Path) -> dict[str, Any]:
    """What runs in `run_dir`, as plain data: deployment, url, answers, healthy, and processes (name, pid, alive, ...).

    answers: whether the API does; healthy: whether it does and every process is alive.
    """
    state = State.read(run_dir)
    if state is None:
        return {"deployment": None, "url": None, "answers": False, "healthy": False, "processes": []}
    rows = [
        {
            "name": one.name,
            "pid": one.pid,
            "alive": one.alive(),
            "memory_bytes": memory_bytes(one),
            "log": one.log,
        }
        for one in state.processes
    ]
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        answers = _answers(client, f"{state.url}/v1/models")
    healthy = answers and all(row["alive"] for row in rows)
    return {
        "deployment": state.deployment,
        "url": state.url,
        "answers": answers,
        "healthy": healthy,
        "processes": rows,
    }


@contextmanager
def running_stack(stack: Stack, progress: Progress) -> Iterator[Stack]:
    """`stack` up inside the block and down after it, whatever happens; ends what an earlier run left."""
    stack.up(progress, replace=True)
    try:
        yield stack
    finally:
        stack.down(progress)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.HTTPError:
        return False


def _death(started: Started) -> str:
    return f"{started.name} died; the end of its log {started.log}:\n{tail(started.log)}"
