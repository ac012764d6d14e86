"""Runs vLLM engines in a child process of their own, and brings plain data back.

vLLM settles its platform once a process, so the engines of these tests must not share the test process with
tests that run vLLM on another platform. One child serves them all: the first engine costs its imports, every
further one about two seconds.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["ENVIRONMENT", "Answer", "Run", "child", "engine", "environment", "generate", "layer_caches", "prompt"]

T = TypeVar("T")

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

DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "disable_log_stats": False,
    "seed": 0,
}


@dataclass(frozen=True)
class Answer:
    """tokens: greedy continuation. logprobs: of each, in nats. cached: prompt tokens found in the cache.

    prompt_logprobs: of each prompt token but the first, where asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    cached: int
    prompt_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """rounds: one list of answers for each pass over the prompts.

    steps: what the attention backend was given: (queries, context) of each request, a list a step.
    layout: the resolved KV cache layout. strides: of every layer's cache, in elements, by layer name.
    metrics: vLLM's counters that are single numbers.
    """

    rounds: list[list[Answer]]
    steps: list[list[tuple[int, int]]]
    layout: str
    strides: dict[str, tuple[int, ...]]
    metrics: dict[str, float]

    @property
    def answers(self) -> list[Answer]:
        return self.rounds[0]

    @property
    def tokens(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Byte tokens without a pattern."""
    state, ids = 12345 + seed, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(state >> 16 & 0xFF)
    return ids


@contextmanager
def child(**extra: str) -> Iterator[Callable[..., Any]]:
    """``run(function, *args, **kwargs)`` calls a module-level function in the child; its result is pickled.

    extra: environment variables to add.
    """
    with ProcessPoolExecutor(
        1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
        initargs=({**ENVIRONMENT, **extra},),
    ) as pool:

        def run(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
            return pool.submit(_called, function, args, kwargs).result(timeout=540)

        yield run


def _called(function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Errors come back as their text, because many of vLLM's hold objects that cannot be pickled."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None


def _prepare(environ: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ.update(environ)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the length of one engine."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def installed(site: str | None) -> Iterator[None]:
    """The packages in the folder ``site`` beside the others, for the length of one engine.

    Row formats are made anew even without a site: they read their settings once.
    """
    from vllm_cpu_dsa.rows import row_formats

    sys.path[:0] = [site] if site else []
    row_formats.cache_clear()
    try:
        yield
    finally:
        if site:
            sys.path.remove(site)
        row_formats.cache_clear()


@contextmanager
def engine(model: Path | str, **options: Any) -> Iterator[Any]:
    """A vLLM engine, and nothing of it left behind."""
    from vllm import LLM

    llm = LLM(model=str(model), **{**DEFAULTS, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


@contextmanager
def recorded_steps() -> Iterator[list[list[tuple[int, int]]]]:
    """The batches that the MLA backend builds while this is open, seen by one of the layers."""
    from vllm_cpu_dsa.mla_backend import CpuSparseMLABuilder

    steps: list[list[tuple[int, int]]] = []
    build = CpuSparseMLABuilder.build

    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = build(self, *args, **kwargs)
        if any(name.startswith("model.layers.0.") for name in self.layer_names):
            steps.append([(r.stop - r.start, r.context) for r in metadata.batch.requests])
        return metadata

    CpuSparseMLABuilder.build = recording  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        CpuSparseMLABuilder.build = build  # type: ignore[method-assign]


def runner(llm: Any) -> Any:
    """The model runner of an engine that lives in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def layer_caches(llm: Any) -> dict[str, Any]:
    """Every layer's cache tensor by the layer's name."""
    layers = runner(llm).compilation_config.static_forward_context
    return {name: layer.kv_cache for name, layer in layers.items() if hasattr(layer, "kv_cache")}


def ask(llm: Any, prompts: list[list[int]], tokens: int, one_by_one: bool, prompt_logprobs: bool) -> list[Answer]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=0,
        prompt_logprobs=0 if prompt_logprobs else None,
    )
    batches = [[ids] for ids in prompts] if one_by_one else [prompts]
    answers = []
    for batch in batches:
        for done in llm.generate([{"prompt_token_ids": ids} for ids in batch], sampling, use_tqdm=False):
            out = done.outputs[0]
            answers.append(
                Answer(
                    list(out.token_ids),
                    [step[token].logprob for token, step in zip(out.token_ids, out.logprobs, strict=True)],
                    done.num_cached_tokens,
                    [
                        step[token].logprob
                        for token, step in zip(done.prompt_token_ids[1:], done.prompt_logprobs[1:], strict=True)
                    ]
                    if prompt_logprobs
                    else [],
                )
            )
    return answers


def generate(
    model: Path | str,
    prompts: list[list[int]],
    *,
    tokens: int = 16,
    rounds: int = 1,
    one_by_one: bool = False,
    prompt_logprobs: bool = False,
    environ: dict[str, str] | None = None,
    site: str | None = None,
    **options: Any,
) -> Run:
    """Answer the prompts greedily, all in one batch or one after another, ``rounds`` times.

    environ: variables, and site: a folder of installed packages, that the engine has besides.
    """
    with environment(**(environ or {})), installed(site), engine(model, **options) as llm, recorded_steps() as steps:
        answered = [ask(llm, prompts, tokens, one_by_one, prompt_logprobs) for _ in range(rounds)]
        return Run(
            answered,
            steps,
            layout=str(llm.llm_engine.vllm_config.cache_config.kv_cache_layout),
            strides={name: tuple(cache.stride()) for name, cache in layer_caches(llm).items()},
            metrics={metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")},
        )
