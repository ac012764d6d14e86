"""vLLM engines with the store connector, each in a process of its own, forked from one that has vLLM imported.

A test sends a function of this module and its arguments; it runs in the engine's process with the engine before them.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

#: Longest wait in seconds for one answer; a quiet machine needs less than ten.
PATIENCE = 500

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp",
    "VLLM_CPU_DSA": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork",
}

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 64,
    "max_model_len": 2048,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
}


@dataclass(frozen=True)
class Answer:
    """tokens: greedy continuation. cached: prompt tokens that were found, on the GPU or in the store.

    kv: what decode needs of prefill.
    """

    tokens: list[int]
    cached: int
    finish_reason: str
    kv: dict[str, Any] | None


class Failed(RuntimeError):
    """The process answered with an error, or ended without an answer."""


class Engine:
    """One engine; `log` is everything that its process printed."""

    def __init__(self, log: Path, environment: dict[str, str], arguments: dict[str, Any]) -> None:
        self._log = log
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, str(log), ENVIRONMENT | environment, OPTIONS | arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> Engine:
        """Wait for its start; raises `Failed`."""
        self._answer()
        return self

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns in the engine's process."""
        self._connection.send((function, arguments))
        return self._answer()

    def ask(self, prompt: list[int], tokens: int = 8, kv: dict[str, Any] | None = None) -> Answer:
        """One request, alone."""
        (answer,) = self.call(generate, [(prompt, kv)], tokens)
        return answer

    def forget(self) -> None:
        """Let all blocks be stored, then empty the engine's own cache, but not the store."""
        assert self.call(settle)
        assert self.call(reset, False)

    def kill(self) -> None:
        """End it as a crash would. Its ranks may wait for ever on their way out, so they are ended, too."""
        ranks: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.join()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()
        self._connection.close()

    def _answer(self) -> Any:
        kind, value = "error", f"no answer in {PATIENCE} s"
        with contextlib.suppress(EOFError, ConnectionError):
            if self._connection.poll(PATIENCE):
                kind, value = "error", "the process ended"
                kind, value = self._connection.recv()
        if kind == "error":
            raise Failed(f"{value}; last lines of its log:\n" + "\n".join(self.log.splitlines()[-25:]))
        return value


def preload() -> None:
    """Start the process that the engines are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        multiprocessing.get_context("forkserver").set_forkserver_preload(["vllm.entrypoints.llm"])
        forkserver.ensure_running()


def tier(metrics: str, **settings: Any) -> dict[str, Any]:
    """The connector's entry, alone or as a child of MultiConnector. settings: with the store's ``master``."""
    return {
        "kv_connector": "TierStoreConnector",
        "kv_connector_module_path": "mooncake_tier.store_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"mooncake_tier": {"metrics": metrics} | settings},
    }


def prompt(length: int, seed: int) -> list[int]:
    """Byte tokens without a pattern."""
    state, ids = 12345 + seed, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(state >> 16 & 0xFF)
    return ids


def _serve(commands: Connection, log: str, environment: dict[str, str], arguments: dict[str, Any]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    # A daemon may have no children, but the connector rehearses its connection in one.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    llm: Any = None

    def start() -> None:
        nonlocal llm
        from vllm import LLM

        llm = LLM(**arguments)

    with contextlib.suppress(EOFError):
        call, given = start, ()
        while True:
            try:
                commands.send(("value", call(*given)))
            except Exception as error:
                traceback.print_exc()
                commands.send(("error", f"{type(error).__name__}: {error}"))
            function, rest = commands.recv()
            call, given = function, (llm, *rest)


# What follows runs in the engine's process.


def generate(llm: Any, requests: list[tuple[list[int], dict[str, Any] | None]], tokens: int) -> list[Answer]:
    """Answer requests: prompts with what to hand over or take from another engine."""
    sampling = [_sampling(tokens, kv) for _, kv in requests]
    done = llm.generate([{"prompt_token_ids": ids} for ids, _ in requests], sampling, use_tqdm=False)
    return [
        Answer(
            list(one.outputs[0].token_ids), one.num_cached_tokens, one.outputs[0].finish_reason, one.kv_transfer_params
        )
        for one in done
    ]


def settle(llm: Any) -> bool:
    """Go on as an idle engine does, until no block waits to be stored."""
    scheduler, until = _core(llm).scheduler, time.monotonic() + 60
    while scheduler.connector.has_pending_push_work() and time.monotonic() < until:
        llm.llm_engine.step()
    return not scheduler.connector.has_pending_push_work()


def reset(llm: Any, with_store: bool) -> bool:
    """Empty the engine's cache, and with it this deployment's part of the store."""
    return llm.llm_engine.reset_prefix_cache(reset_connector=with_store)


def figures(llm: Any) -> dict[str, float]:
    """What the client counted, as ``name/label``."""
    return {"/".join(filter(None, key)): value for key, value in _client(llm).snapshot().items()}


def metrics(llm: Any) -> dict[str, float]:
    """The connector's figures as vLLM tells them, by name and the last label."""
    return {
        f"{one.name}/{list(one.labels.values())[-1]}": one.value
        for one in llm.get_metrics()
        if one.name.startswith("vllm:mooncake_tier_")
    }


def namespace(llm: Any) -> str:
    """The deployment's namespace."""
    return _client(llm).namespace


def usable(llm: Any) -> bool:
    """Whether the breaker lets calls through."""
    return _client(llm).breaker.allows


def begin(llm: Any, name: str, ids: list[int], tokens: int) -> int:
    """Add a request and go on until it decodes; tokens that it has."""
    llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, _sampling(tokens))
    for _ in range(1000):
        for output in llm.llm_engine.step():
            if output.request_id == name and len(output.outputs[0].token_ids) >= 2:
                return len(output.outputs[0].token_ids)
    raise AssertionError("it never decoded")


def beside(llm: Any, running: str, name: str, ids: list[int], tokens: int) -> tuple[list[int], Answer]:
    """Add a request beside a running one, until it is answered.

    Returns how many tokens the running one got in each step in which the new one waited for the store, and the answer.
    """
    from vllm.v1.request import RequestStatus

    waiting = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS)
    llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, _sampling(tokens))
    steps: list[int] = []
    for _ in range(5000):
        outputs = llm.llm_engine.step()
        for output in outputs:
            if output.request_id == name and output.finished:
                one = output.outputs[0]
                return steps, Answer(list(one.token_ids), output.num_cached_tokens, one.finish_reason, None)
        added = [one for key, one in _core(llm).scheduler.requests.items() if key.startswith(name)]
        if added and added[0].status in waiting:
            steps.append(sum(output.request_id == running for output in outputs))
    raise AssertionError("it was never answered")


def abort(llm: Any, name: str) -> None:
    """End a request."""
    llm.llm_engine.abort_request([name])
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


def refusal(llm: Any, changed: dict[str, Any], around: dict[str, Any]) -> str:
    """What the connector says of this engine's configuration with other values; empty if nothing.

    changed: path such as ``config.cache_config.block_size`` -> value, or "twice" for a list with each entry twice.
    around: the same for MultiConnector's entry.
    """
    from vllm.config import set_current_vllm_config

    from mooncake_tier.errors import TierRefused, TierUnavailable
    from mooncake_tier.store.checks import refuse_what_cannot_work
    from mooncake_tier.store.parts import SchedulerPart

    core = _core(llm)
    inner, outer = (_changed(core.vllm_config, core.scheduler.kv_cache_config, one) for one in (changed, around))
    try:
        with set_current_vllm_config(outer.config):
            refuse_what_cannot_work(inner.config, inner.caches)
        SchedulerPart(inner.config, inner.caches).close()
    except (TierRefused, TierUnavailable) as error:
        return str(error)
    return ""


def _changed(config: Any, caches: Any, values: dict[str, Any]) -> Any:
    root = SimpleNamespace(config=copy.copy(config), caches=copy.copy(caches))
    for path, value in values.items():
        *parents, last = path.split(".")
        at = root
        for name in parents:
            setattr(at, name, copy.copy(getattr(at, name)))
            at = getattr(at, name)
        setattr(at, last, 2 * getattr(at, last) if value == "twice" else value)
    return root


def record_events(llm: Any) -> None:
    """Keep what is published from now on."""
    publisher = _core(llm).scheduler.kv_event_publisher
    publisher.recorded = []
    publisher.publish = lambda batch: publisher.recorded.extend(batch.events)


def take_events(llm: Any) -> list[dict[str, Any]]:
    """What was published since, as plain data."""
    import msgspec

    publisher = _core(llm).scheduler.kv_event_publisher
    taken, publisher.recorded = publisher.recorded, []
    return [msgspec.structs.asdict(event) | {"type": type(event).__name__} for event in taken]


def _core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def _client(llm: Any) -> Any:
    connector = _core(llm).scheduler.connector
    (tier,) = [one for one in getattr(connector, "sub_connectors", [connector]) if hasattr(one, "_part")]
    return tier._part.shared.client


def _sampling(tokens: int, kv: dict[str, Any] | None = None) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        extra_args={"kv_transfer_params": kv} if kv else None,
    )
