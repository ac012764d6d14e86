"""A real ``vllm serve`` on loopback: API process and engine process, driven and measured over HTTP."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import vllm_process

#: Longest wait for one answer in seconds.
PATIENCE = 300

#: The statistics cross a process border, and the processes are forked from one that has vLLM imported.
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork"}

#: Labels by name, in a fixed order.
Labels = tuple[tuple[str, str], ...]


class Server:
    """One ``vllm serve`` with all its processes; `log` is everything they printed."""

    def __init__(self, log: Path, transfer_log: Path, port: int, arguments: list[str], environment: dict[str, str]):
        self._log, self._transfer_log = log, transfer_log
        self._url = f"http://127.0.0.1:{port}"
        arguments = ["serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
        context = multiprocessing.get_context("forkserver")
        # Not a daemon: those may not have the engine as a child of their own.
        self._process = context.Process(
            target=vllm_process.serve_http, args=(str(log), ENVIRONMENT | environment, arguments), daemon=False
        )
        self._process.start()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def transfers(self) -> list[dict[str, Any]]:
        lines = self._transfer_log.read_text().splitlines() if self._transfer_log.exists() else []
        return [json.loads(line) for line in lines]

    def wait(self) -> None:
        """Until it answers; raises RuntimeError with the end of its log if it does not."""
        until = time.monotonic() + PATIENCE
        while self._process.is_alive() and time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("no server; last lines of its log:\n" + "\n".join(self.log.splitlines()[-30:]))

    def complete(
        self, prompt: list[int], tokens: int, kv: dict[str, Any] | None = None, name: str | None = None
    ) -> dict[str, Any]:
        """Greedy tokens, finish reason and handoff. name: the request's id, which push mode matches on both sides."""
        body = {
            "model": "glm",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if kv:
            body["kv_transfer_params"] = kv
        headers = {"Content-Type": "application/json"} | ({"X-Request-Id": name} if name else {})
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        return {
            "tokens": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "kv": answer["kv_transfer_params"],
        }

    def metrics(self, prefix: str) -> dict[str, dict[Labels, float]]:
        """Values at ``/metrics`` of the metrics whose names begin with this, by sample name and labels."""
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(f"{self._url}/metrics", timeout=PATIENCE) as response:
            text = response.read().decode()
        found: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(prefix):
                    found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def kill(self) -> None:
        """End all its processes as the kernel would, also those that outlived the first."""
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # It may not have made its group yet.
        self._process.join()
