"""Stock vLLM with one way of caching after another: teacher-forced distributions, and needles in long texts."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cache_accuracy.divergence import Distribution
from cache_accuracy.needle import make_needle
from cache_accuracy.settings import CacheRefused, Setting, check_device, check_rows, environment

__all__ = ["Found", "Observed", "Questions", "device", "observe", "prepare"]

WHOLE_VOCABULARY = 4096
"""The largest vocabulary of which every log probability is asked for; each one is a Python object."""


@dataclass(frozen=True)
class Questions:
    """What every cache is asked.

    prompts: texts. tokens: of each, at most. likeliest: tokens whose log probability is asked for where the vocabulary
    is larger than `WHOLE_VOCABULARY`. needle_tokens: length of the needle prompts, 0 for none. depths: of the needles.
    """

    prompts: Sequence[str]
    tokens: int
    likeliest: int = 64
    needle_tokens: int = 0
    depths: Sequence[float] = ()
    answer_tokens: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """One needle. tokens: of the prompt. found: its number stands in the answer.

    selected: positions that the prompt's last token attends to, by the last layer with an indexer. recall: fraction of
    the needle's tokens among them. Both None where vLLM has no such selection.
    """

    depth: float
    tokens: int
    found: bool
    answer: str
    selected: int | None
    recall: float | None


@dataclass(frozen=True)
class Observed:
    """What an engine gave. distributions: for each prompt token but the first of each prompt, in order.

    whole: they are of the whole vocabulary. fingerprint: how the NVFP4 rows were written; None of other caches.
    """

    distributions: list[Distribution]
    whole: bool
    needles: list[Found] = field(default_factory=list)
    fingerprint: str | None = None


def device() -> str:
    """Where vLLM will run: ``cuda`` or ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def prepare() -> None:
    """Set, before vLLM is imported, what it needs on the CPU; variables that are set stay. Nothing on a GPU.

    One process keeps the start of an engine short, and one thread its sums the same on every machine.
    """
    if device() != "cpu":
        return
    import torch

    for name, value in (
        ("VLLM_CPU_DSA", "1"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("OMP_NUM_THREADS", "1"),
    ):
        os.environ.setdefault(name, value)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def observe(model: Path | str, setting: Setting, questions: Questions, **options: Any) -> Observed:
    """Ask an engine with this cache everything. ``options``: further arguments of `vllm.LLM`.

    Raises `CacheRefused` if the device cannot have the cache, if vLLM does not start with it, and if the workers' rows
    are not what the setting says.
    """
    check_device(setting, device())
    with environment(setting), _engine(model, setting, questions, options) as llm:
        [fingerprint] = {*llm.collective_rpc("accuracy_fingerprint")}
        check_rows(setting, fingerprint)
        vocabulary = llm.llm_engine.model_config.get_vocab_size()
        distributions = _teacher_forced(llm, questions, vocabulary)
        needles = [_search(llm, questions, depth) for depth in questions.depths if questions.needle_tokens]
        return Observed(distributions, vocabulary <= WHOLE_VOCABULARY, needles, fingerprint)


@contextmanager
def _engine(model: Path | str, setting: Setting, questions: Questions, options: dict[str, Any]) -> Iterator[Any]:
    from vllm import LLM

    if device() == "cpu":
        from vllm_cpu_dsa.rows import row_formats

        row_formats.cache_clear()  # in this process, and built with the policy of the engine before
    arguments: dict[str, Any] = {
        "kv_cache_dtype": setting.cache_dtype,
        "worker_extension_cls": "cache_accuracy.worker.AccuracyWorker",
        # Otherwise vLLM attends short prompts from the values just computed, past the cache.
        "attention_config": {"sparse_mla_force_mqa": True},
        "enable_prefix_caching": False,
        "max_logprobs": -1,
        "seed": questions.seed,
    }
    try:
        llm = LLM(model=str(model), **arguments | options)
    except Exception as error:  # of any kind, from whichever part of vLLM: hours of other caches must not be lost
        raise CacheRefused(
            f"vLLM does not start with --kv-cache-dtype {setting.cache_dtype} here: {type(error).__name__}: {error} "
            "Allowed is what this GPU's backends read; vLLM's own lines above say what is missing."
        ) from error
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _teacher_forced(llm: Any, questions: Questions, vocabulary: int) -> list[Distribution]:
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    wanted = -1 if vocabulary <= WHOLE_VOCABULARY else questions.likeliest
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=wanted, detokenize=False)
    prompts = [{"prompt_token_ids": tokenizer(text)["input_ids"][: questions.tokens]} for text in questions.prompts]
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    return [
        {token: entry.logprob for token, entry in step.items()} for done in answers for step in done.prompt_logprobs[1:]
    ]


def _search(llm: Any, questions: Questions, depth: float) -> Found:
    from vllm import SamplingParams

    needle = make_needle(llm.get_tokenizer(), questions.needle_tokens, depth, questions.seed)
    prompt = [{"prompt_token_ids": needle.prompt}]
    # The selection is that of the last step, which is the prompt's last chunk as long as one token is asked for.
    llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    chunk = llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    selected = llm.collective_rpc("accuracy_selected", args=((len(needle.prompt) - 1) % chunk,))[0]
    [done] = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=questions.answer_tokens), use_tqdm=False)
    answer = done.outputs[0].text
    return Found(
        depth=depth,
        tokens=len(needle.prompt),
        found=needle.answer in answer,
        answer=answer,
        selected=None if selected is None else len(selected),
        recall=None if selected is None else len({*needle.positions} & {*selected}) / len(needle.positions),
    )
