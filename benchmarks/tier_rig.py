"""vLLM's CPU engine with the tier, in a process of its own, stepped so that every token has a time.

`engine_process` starts the process and calls functions in it; all others run there, on the one engine that `start` has
made. Whoever calls keeps the store, and can do to it what he wants meanwhile.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "ENVIRONMENT",
    "LONGEST_S",
    "Call",
    "Request",
    "Rig",
    "engine_process",
    "prompt",
    "rig",
    "start",
    "stop",
    "transfer",
]

CHUNK, BUDGET = 128, 64
#: Longest time in seconds that anything here may take; what takes longer hangs.
LONGEST_S = 300.0
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_DSA": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
#: Deadlines are the tier's own; pauses that only cost time when a fault is over are shorter.
SETTINGS: dict[str, Any] = {"cooldown_s": 0.5, "longest_cooldown_s": 2.0}

Call = Callable[..., Any]


def prompt(length: int, seed: int) -> list[int]:
    """Byte tokens without a pattern."""
    state, ids = 777 + seed, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(state >> 16 & 0xFF)
    return ids


def own_clock() -> float:
    """Seconds without those in which this thread could have run and others had the cores: they say nothing of what it
    waits for. Where Linux does not tell them, the monotonic clock."""
    waited = int(_SCHEDULED.read_text().split()[1]) if _SCHEDULED.exists() else 0
    return time.monotonic() - 1e-9 * waited


_SCHEDULED = Path("/proc/thread-self/schedstat")


@dataclass
class Request:
    """times: of its arrival and of each token, in seconds. own: the same by `own_clock`. cached: prompt tokens that
    were not computed."""

    times: list[float]
    own: list[float]
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    finished: bool = False

    @property
    def first(self) -> float:
        """Seconds until the first token."""
        return self.times[1] - self.times[0]


class Rig:
    """The engine, and its requests by name. way: ``offload``, ``store``, or ``none`` for an engine without a tier.

    section: the tier's settings. host_bytes: host memory of ``offload``. options: of the engine.
    """

    def __init__(self, model: str, way: str, section: dict[str, Any], host_bytes: int, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.way = way
        given: dict[str, Any] = {
            "kv_transfer_config": transfer(way, SETTINGS | section, host_bytes),
            "block_size": 64,
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_batched_tokens": BUDGET,
            "kv_cache_memory_bytes": 32 << 20,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "seed": 0,
        }
        self.llm = LLM(model=model, **given | options)
        self.requests: dict[str, Request] = {}

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def client(self) -> Any:
        """The tier's `mooncake_tier.client.tier_client.TierClient`; None until it is connected."""
        connector = self.scheduler.connector
        return connector._tier.pool.client if self.way == "offload" else connector._part.shared.client

    def add(self, name: str, ids: list[int], tokens: int, last: bool = False) -> Request:
        """Queue a request. last: it ends its session."""
        from vllm import SamplingParams

        extra = {"kv_transfer_params": {"session_end": True}} if last else None
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)
        self.requests[name] = Request([time.monotonic()], [own_clock()])
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, sampling)
        return self.requests[name]

    def step(self) -> None:
        for out in self.llm.llm_engine.step():
            one = self.requests[out.request_id]
            one.tokens = list(out.outputs[0].token_ids)
            more = len(one.tokens) + 1 - len(one.times)
            one.times.extend([time.monotonic()] * more)
            one.own.extend([own_clock()] * more)
            one.cached, one.finished = out.num_cached_tokens or 0, out.finished
        if not self.scheduler.running:
            time.sleep(0.001)

    def until(self, condition: Callable[[], Any], seconds: float = 0.8 * LONGEST_S) -> None:
        """Step until something is true; raises TimeoutError if it never is."""
        end = time.monotonic() + seconds
        while not condition():
            self.step()
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s; requests: {list(self.scheduler.requests)}")

    def rest(self) -> None:
        """Step until nothing is left to do, stores included."""
        connector = self.scheduler.connector
        pending = getattr(connector, "has_pending_push_work", lambda: False)
        self.until(lambda: not (self.scheduler.has_requests() or pending()))

    def ask(self, name: str, ids: list[int], tokens: int) -> Request:
        """Answer one prompt alone, and wait until its blocks are stored."""
        one = self.add(name, ids, tokens)
        self.until(lambda: one.finished)
        self.rest()
        return one

    def abort(self, name: str) -> None:
        self.llm.llm_engine.abort_request([name])
        self.rest()

    def forget(self) -> None:
        """Empty the caches of GPU and host; the store stays. Nothing may run."""
        if not self.scheduler.reset_prefix_cache():
            raise RuntimeError("blocks are in use, so the caches cannot be emptied")
        if self.way == "offload":
            manager = self.scheduler.connector.connector_scheduler.manager
            manager.reset_cache()
            getattr(manager, "on_reset_flushed", lambda: None)()

    def figures(self) -> dict[str, float]:
        """The tier's figures as ``name label``, without their common prefix."""
        if self.way == "none" or self.client is None:
            return {}
        source = self.scheduler.connector._tier.pool if self.way == "offload" else self.client
        return {
            f"{name.removeprefix('mooncake_tier_')} {label}".strip(): value
            for (name, label), value in source.snapshot().items()
        }


def transfer(way: str, section: dict[str, Any], host_bytes: int) -> dict[str, Any] | None:
    """``--kv-transfer-config``, as documented."""
    if way == "none":
        return None
    if way == "store":
        return {
            "kv_connector": "TierStoreConnector",
            "kv_connector_module_path": "mooncake_tier.store_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"mooncake_tier": section},
        }
    return {
        "kv_connector": "PrefetchOffloadingConnector",
        "kv_connector_module_path": "mooncake_tier.offload",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "mooncake_tier.cpu_platform",
            "cpu_bytes_to_use": host_bytes,
            "block_size": CHUNK,
            "secondary_tiers": [{"type": "MooncakeTier", "module_path": "mooncake_tier.tier"}],
            "mooncake_tier": section,
        },
    }


_engines: list[Rig] = []


def rig() -> Rig:
    """The engine of this process."""
    return _engines[0]


def start(
    model: str, way: str, section: dict[str, Any] | None = None, host_bytes: int = 32 << 20, **options: Any
) -> None:
    """Make an engine instead of the one before; see `Rig`."""
    stop()
    _engines.append(Rig(model, way, section or {}, host_bytes, options))


def stop() -> None:
    """End the engine."""
    while _engines:
        _engines.pop().llm.llm_engine.engine_core.shutdown()
        gc.collect()


@contextmanager
def engine_process() -> Iterator[tuple[Call, Call]]:
    """``call(function, *arguments)`` runs a function in the process and waits for its result, no longer than
    `LONGEST_S`; ``begin`` returns a future instead."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare) as pool:

        def begin(function: Call, *arguments: Any, **named: Any) -> Future[Any]:
            return pool.submit(_called, function, arguments, named)

        def call(function: Call, *arguments: Any, **named: Any) -> Any:
            return begin(function, *arguments, **named).result(timeout=LONGEST_S)

        try:
            yield call, begin
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.kill()  # it may hang, and then the pool would wait for it
            raise
        call(stop)


def _prepare() -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ.update(ENVIRONMENT)


def _called(function: Call, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Errors come back as their text, because many of vLLM's hold objects that cannot be pickled."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None
