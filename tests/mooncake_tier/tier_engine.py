"""vLLM engines with the tier, in a child process of their own, one after another; plain data comes back.

vLLM settles its platform once a process, and its imports take seconds, so one child serves all engines. The functions
here run in the child: `start` makes the engine that the others use.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

CHUNK = 128
ENVIRONMENT = {
    "VLLM_CPU_DSA": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
#: Deadlines that a busy machine keeps, and a breaker that opens at the first failure.
LONG = {
    "lookup_s": 20.0,
    "load_s": 20.0,
    "store_s": 20.0,
    "opening_s": 60.0,
    "failures": 1,
    "cooldown_s": 0.2,
    "longest_cooldown_s": 1.0,
}
_engine: list[Any] = []


@dataclass(frozen=True)
class Answer:
    """tokens: greedy continuation. cached: prompt tokens that were not computed. steps: the engine took."""

    tokens: list[int]
    cached: int
    steps: int


def prompt(length: int, seed: int) -> list[int]:
    """Byte tokens without a pattern."""
    state, ids = 12345 + seed, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(state >> 16 & 0xFF)
    return ids


def transfer_config(store: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """``--kv-transfer-config`` of the CPU stack, as documented. store: the section of the tier."""
    return {
        "kv_connector": "PrefetchOffloadingConnector",
        "kv_connector_module_path": "mooncake_tier.offload",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "mooncake_tier.cpu_platform",
            "cpu_bytes_to_use": 128 << 20,
            "block_size": CHUNK,
            "secondary_tiers": [{"type": "MooncakeTier", "module_path": "mooncake_tier.tier"}],
            "mooncake_tier": LONG | store,
        }
        | extra,
    }


@contextmanager
def child() -> Iterator[Callable[..., Any]]:
    """``run(function, *args)`` calls a function of a module in the child; its result is pickled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare) as pool:

        def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return pool.submit(_called, function, args, kwargs).result(timeout=500)

        try:
            yield run
        finally:
            run(stop)


def _prepare() -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ.update(ENVIRONMENT)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Errors come back as their text, because many of vLLM's hold objects that cannot be pickled."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None


def start(model: str, transfer: dict[str, Any] | None, **options: Any) -> None:
    """Make the engine that the other functions use, instead of the one before."""
    from vllm import LLM

    stop()
    given: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 4096,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "disable_log_stats": False,
        "seed": 0,
    }
    _engine.append(LLM(model=model, kv_transfer_config=transfer, **given | options))


def stop() -> None:
    """End the engine."""
    while _engine:
        _engine.pop().llm_engine.engine_core.shutdown()
        gc.collect()


def scheduler() -> Any:
    return _engine[0].llm_engine.engine_core.engine_core.scheduler


def connector() -> Any:
    return scheduler().connector


def pool() -> Any:
    """The tier's `mooncake_tier.offloading.chunks.ChunkPool`."""
    return connector()._tier.pool


def add(name: str, ids: list[int], tokens: int = 8, **params: Any) -> None:
    """Queue a request."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **params)
    _engine[0].llm_engine.add_request(name, {"prompt_token_ids": ids}, sampling)


def step() -> list[Any]:
    """One step of the engine; what it says of requests."""
    return list(_engine[0].llm_engine.step())


def answer(ids: list[int], tokens: int = 8, name: str = "asked") -> Answer:
    """Answer one prompt alone, greedily."""
    add(name, ids, tokens)
    for number in range(1, 100_000):
        for out in step():
            if out.request_id == name and out.finished:
                return Answer(list(out.outputs[0].token_ids), out.num_cached_tokens or 0, number)
        if not scheduler().running:
            time.sleep(0.001)
    raise AssertionError("no answer")


def settle(seconds: float = 60.0) -> None:
    """Step until nothing is left to do, such as storing."""
    until = time.monotonic() + seconds
    while scheduler().has_requests():
        step()
        time.sleep(0.005)
        assert time.monotonic() < until, "the engine never came to rest"


def answers(prompts: list[list[int]], tokens: int = 8) -> list[Answer]:
    """Answer prompts one after another, and wait until their chunks are stored."""
    found = [answer(ids, tokens) for ids in prompts]
    settle()
    return found


def figures() -> dict[tuple[str, str], float]:
    """The tier's figures."""
    return dict(pool().snapshot())


def metrics() -> dict[str, float]:
    """vLLM's metrics of the tier that are not 0, by name and label."""
    found = {}
    for metric in _engine[0].get_metrics():
        if "mooncake_tier" in metric.name and getattr(metric, "value", None):
            labels = [value for name, value in metric.labels.items() if name not in ("model_name", "engine")]
            found[" ".join([metric.name, *labels])] = metric.value
    return found


def forget() -> None:
    """Empty the caches of GPU and host, and leave the store as it is."""
    assert scheduler().reset_prefix_cache()
    manager = connector().connector_scheduler.manager
    manager.reset_cache()
    getattr(manager, "on_reset_flushed", lambda: None)()
