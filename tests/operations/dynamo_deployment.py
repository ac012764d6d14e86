"""Real Dynamo deployments for the tests of operations: a frontend over mocker or scripted workers, all on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from glm53.local.processes import free_ports

__all__ = ["MODEL", "Deployment", "deployed"]

MODEL = "tiny"
_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp")
_SCRIPTED = Path(__file__).parents[1] / "dynamo_structural_tags" / "scripted_worker.py"


@dataclass
class Deployment:
    """One frontend and its workers. folder: logs, discovery, and what reached the scripted workers."""

    folder: Path
    model: Path
    port: int
    environment: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Root of the API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> Path:
        """Where scripted workers write every request."""
        return self.folder / "requests.jsonl"

    def run(self, name: str, *argv: str, **variables: str) -> None:
        """Start one Python process. variables: on top of the deployment's."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *argv],
                env={**self.environment, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def front(self, *options: str, name: str = "frontend", port: int | None = None, **variables: str) -> None:
        """Start a frontend. port: another than the deployment's own."""
        address = ("--http-host", "127.0.0.1", "--http-port", str(port or self.port))
        self.run(name, "-m", "dynamo.frontend", *address, *_PLANES, *options, **variables)

    def mocker(self, name: str, *options: str) -> None:
        """Start a worker that computes nothing and takes the time of one that does."""
        self.run(
            name, "-m", "dynamo.mocker", "--model-path", str(self.model), "--model-name", MODEL, *_PLANES, *options
        )

    def scripted(self, name: str, *options: str) -> None:
        """Start a worker that answers what the prompt asks for."""
        self.run(name, str(_SCRIPTED), str(self.model), MODEL, str(self.requests), *options)

    def wait(self, workers: int = 1, seconds: float = 120) -> None:
        """Return once the frontend knows so many workers and serves the model."""
        deadline = time.monotonic() + seconds
        with httpx.Client(timeout=5, trust_env=False) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    known = client.get(f"{self.url}/health").json()["instances"]
                    models = client.get(f"{self.url}/v1/models").json()["data"]
                    if sum(one["endpoint"] == "generate" for one in known) >= workers and models:
                        return
                time.sleep(0.1)
        logs = "\n".join(
            f"--- {one.name}\n{one.read_text(errors='replace')[-2000:]}" for one in self.folder.glob("*.log")
        )
        raise RuntimeError(f"{self.url} does not serve:\n{logs}")

    def end(self, names: Sequence[str] = (), number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the named processes, or all, and wait until they are gone."""
        chosen = [self.processes[name] for name in (names or list(self.processes))]  # a wrong name ends nothing
        self.processes = {name: one for name, one in self.processes.items() if one not in chosen}
        for process in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in chosen:
            process.wait(timeout=60)


@contextlib.contextmanager
def deployed(folder: Path, model: Path, *, port: int | None = None, **variables: str) -> Iterator[Deployment]:
    """A deployment of which nothing runs yet; everything is ended afterwards. variables: of all processes."""
    folder.mkdir(parents=True, exist_ok=True)
    [publish, subscribe, free] = free_ports(3, "127.0.0.1")
    environment = os.environ | {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_SELF_HOST_METADATA": "0",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_ZMQ_BROKER_URL": f"xsub=tcp://127.0.0.1:{publish} , xpub=tcp://127.0.0.1:{subscribe}",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "DYN_LOG": "info,tower_http=off",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    environment.pop("DYNAMO_STRUCTURAL_TAGS", None)
    made = Deployment(folder, model, port or free, environment)
    made.requests.touch()
    made.run("broker", "-m", "glm53.local.broker", f"tcp://127.0.0.1:{publish}", f"tcp://127.0.0.1:{subscribe}")
    try:
        yield made
    finally:
        made.end()
