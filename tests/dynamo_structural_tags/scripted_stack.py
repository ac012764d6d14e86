"""What the frontend's tests share: real Dynamo frontends, ours and stock, over scripted workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from glm53.local.processes import free_ports

__all__ = ["OURS", "STOCK", "Front", "script", "started"]

OURS = "dynamo_structural_tags.frontend"
STOCK = "dynamo.frontend"


def script(text: str, **options: Any) -> str:
    """A user message that makes the scripted worker write `text`; options: see scripted_worker.py."""
    return f"@@{json.dumps({'text': text, **options})}@@"


@dataclass
class Front:
    """One frontend. model: the name of the model that its worker serves. pid: its process."""

    url: str
    model: str
    requests: Path
    log: Path
    pid: int
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        """Send one request; `model` and a message are filled in."""
        filled = {"model": self.model, "messages": [{"role": "user", "content": "hi"}]} | body
        return self.client.post(self.url + path, json=filled)

    def events(self, path: str = "/v1/chat/completions", **body: Any) -> list[dict[str, Any]]:
        """The JSON of each event of a streamed response."""
        text = self.post(path, stream=True, **body).text
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def seen(self) -> dict[str, Any]:
        """The last request that reached a worker."""
        lines = [json.loads(line) for line in self.requests.read_text().splitlines()]
        return next(line["request"] for line in reversed(lines) if line != "stopped")

    def workers(self) -> list[int]:
        """The process of the worker that each request went to."""
        lines = [json.loads(line) for line in self.requests.read_text().splitlines()]
        return [line["worker"] for line in lines if line != "stopped"]


@contextlib.contextmanager
def started(
    folder: Path,
    model: Path,
    fronts: Mapping[str, str],
    *options: str,
    parser: str = "2",
    workers: int = 1,
    router: Sequence[str] = (),
) -> Iterator[dict[str, Front]]:
    """Frontends by name over scripted workers: module to run -> Front; everything is ended afterwards.

    folder: for logs and discovery. options: the workers'. parser: version of Dynamo's own parsers. router: more
    arguments of the frontends.
    """
    environment = {
        **os.environ,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_SELF_HOST_METADATA": "0",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "DYN_LOG": "info,dynamo_llm::http=off,tower_http=off",
        "DYN_PARSER_VERSION": parser,
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("DYNAMO_STRUCTURAL_TAGS", None)
    folder.mkdir(parents=True, exist_ok=True)
    requests = folder / "requests.jsonl"
    requests.touch()
    processes = []

    def run(name: str, *argv: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *argv], env=environment, stdout=output, stderr=output, start_new_session=True
                )
            )
        return log

    try:
        made = {}
        for name, module in fronts.items():
            [port] = free_ports(1, "127.0.0.1")
            address = ("--http-host", "127.0.0.1", "--http-port", str(port), "--enable-anthropic-api")
            planes = ("--discovery-backend", "file", "--request-plane", "tcp")
            log = run(name, "-m", module, *address, *planes, *router)
            made[name] = Front(f"http://127.0.0.1:{port}", "tiny", requests, log, processes[-1].pid)
        script = str(Path(__file__).with_name("scripted_worker.py"))
        for number in range(workers):
            run(f"worker{number or ''}", script, str(model), "tiny", str(requests), *options)
        for front in made.values():
            _wait(front, processes, folder)
        yield made
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(front: Front, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if front.model in [item["id"] for item in front.client.get(f"{front.url}/v1/models").json()["data"]]:
                return
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.1)
    logs = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in folder.glob("*.log"))
    raise RuntimeError(f"{front.url} serves no {front.model}:\n{logs}")
