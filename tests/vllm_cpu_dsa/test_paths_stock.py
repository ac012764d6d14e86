"""One answer, whatever way the engine takes to it: chunks, cache hits, layouts, preemption, mixed batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

from dsa_engine import Run, child, generate, prompt

LENGTHS = (7, 100, 300, 700)
PROMPTS = [prompt(length, length) for length in LENGTHS]
TOKENS = 24

ROW = 576 * 4  # bytes: float32
INDEXER_PAGE = 64 * 132
MLA_PAGE = 64 * ROW


@pytest.fixture(scope="module")
def model(folder: Any) -> Path:
    """Four layers, three of them with an indexer, index_topk 128: the longer prompts exceed it."""
    return folder()


@pytest.fixture(scope="module")
def one_shot(run: Callable[..., Any], model: Path) -> Run:
    """Each prompt alone and in one step: the answers that every other way must repeat."""
    return run(generate, model, PROMPTS, tokens=TOKENS, one_by_one=True)


def test_one_shot_means_one_step_a_prompt(one_shot: Run) -> None:
    assert [step for step in one_shot.steps if step[0][0] > 1] == [[(n, n)] for n in LENGTHS]
    assert [answer.cached for answer in one_shot.answers] == [0] * 4


def test_a_batch_of_all_prompts_gives_the_same_tokens(run: Callable[..., Any], model: Path, one_shot: Run) -> None:
    batched = run(generate, model, PROMPTS, tokens=TOKENS)

    assert max(len(step) for step in batched.steps) == 4
    assert batched.tokens == one_shot.tokens


def test_chunked_prefill_beside_decodes_gives_the_same_tokens(
    run: Callable[..., Any], model: Path, one_shot: Run
) -> None:
    chunked = run(generate, model, PROMPTS, tokens=TOKENS, max_num_batched_tokens=48)

    chunks = [r for step in chunked.steps for r in step if 1 < r[0] < r[1]]
    mixed = [s for s in chunked.steps if any(r[0] == 1 for r in s) and any(1 < r[0] < r[1] for r in s)]
    assert len(chunks) > 15
    assert len(mixed) > 5
    assert chunked.tokens == one_shot.tokens


def test_a_prefix_cache_hit_gives_the_same_tokens(run: Callable[..., Any], model: Path, one_shot: Run) -> None:
    twice = run(generate, model, PROMPTS, tokens=TOKENS, one_by_one=True, rounds=2)

    # Whole blocks of 64, and never the last token, which has to be computed for its logits.
    assert [answer.cached for answer in twice.rounds[1]] == [0, 64, 256, 640]
    assert [[a.tokens for a in answers] for answers in twice.rounds] == [one_shot.tokens] * 2


def test_a_prompt_that_continues_an_answered_one_hits_its_blocks_and_gets_the_same_answer(
    run: Callable[..., Any], model: Path, one_shot: Run
) -> None:
    longer = PROMPTS[2] + one_shot.tokens[2] + prompt(90, 3)
    fresh = run(generate, model, [longer], tokens=TOKENS)
    after = run(generate, model, [PROMPTS[2], longer], tokens=TOKENS, one_by_one=True)

    assert fresh.answers[0].cached == 0
    assert after.answers[1].cached == 320  # five blocks: 300 prompt and 20 of the 24 generated tokens
    assert after.answers[1].tokens == fresh.answers[0].tokens


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "BLHNC", "BLNHC"])
def test_every_block_compact_layout_gives_the_same_tokens(
    run: Callable[..., Any], model: Path, one_shot: Run, layout: str
) -> None:
    other = run(
        generate,
        model,
        PROMPTS,
        tokens=TOKENS,
        rounds=2,
        max_num_batched_tokens=256,
        environ={"VLLM_KV_CACHE_LAYOUT": layout},
    )

    # Block-outermost: one page of every layer, padded to whole MLA rows. Layer-outermost: pages side by side.
    payload = 4 * MLA_PAGE + 3 * INDEXER_PAGE
    block_row = -(-payload // ROW) * ROW
    for name, strides in other.strides.items():
        bytes_an_element = 1 if "indexer" in name else 4
        page = INDEXER_PAGE if "indexer" in name else MLA_PAGE
        assert strides[0] * bytes_an_element == (block_row if layout.startswith("BL") else page), name
    assert len(other.strides) == 7
    assert other.layout.endswith(layout)
    assert [answer.cached > 0 for answer in other.rounds[1]] == [False, True, True, True]
    assert [[a.tokens for a in answers] for answers in other.rounds] == [one_shot.tokens] * 2


CROWD = [prompt(150, seed) for seed in range(4)]


@pytest.fixture(scope="module")
def roomy(run: Callable[..., Any], model: Path) -> Run:
    return run(generate, model, CROWD, tokens=60)


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
def test_preempted_requests_get_the_same_tokens(run: Callable[..., Any], model: Path, roomy: Run, layout: str) -> None:
    """Four requests of 150 + 60 tokens need 16 blocks; the cache has 10."""
    tight = run(
        generate,
        model,
        CROWD,
        tokens=60,
        max_model_len=512,
        num_gpu_blocks_override=11,
        environ={"VLLM_KV_CACHE_LAYOUT": layout},
    )

    assert roomy.metrics["vllm:num_preemptions"] == 0
    assert tight.metrics["vllm:num_preemptions"] > 0
    assert tight.tokens == roomy.tokens


def test_blocks_of_128_tokens_are_served_as_two_kernel_blocks(
    run: Callable[..., Any], model: Path, one_shot: Run
) -> None:
    large = run(generate, model, PROMPTS, tokens=TOKENS, rounds=2, block_size=128)

    assert [answer.cached for answer in large.rounds[1]] == [0, 0, 256, 640]
    assert [[a.tokens for a in answers] for answers in large.rounds] == [one_shot.tokens] * 2


def tokens_of_processes(model: Path, prompts: list[list[int]], tokens: int, **options: Any) -> list[list[int]]:
    """Like `generate`, where the model runners live in processes of their own."""
    from dsa_engine import ask, engine

    with engine(model, **options) as llm:
        return [answer.tokens for answer in ask(llm, prompts, tokens, False, False)]


def test_two_tensor_parallel_workers_give_the_same_tokens(run: Callable[..., Any], model: Path, one_shot: Run) -> None:
    with child(VLLM_ENABLE_V1_MULTIPROCESSING="1") as apart:
        found = apart(tokens_of_processes, model, PROMPTS, TOKENS, tensor_parallel_size=2)

    assert found == one_shot.tokens


def test_half_precision_stays_near_float32(run: Callable[..., Any], model: Path) -> None:
    """Prompt tokens within index_topk, where rounding swaps no selected token; a router may still switch an
    expert, so the median is judged. bfloat16 keeps 8 significant bits, float16 keeps 11."""
    full, brain, half = (
        run(generate, model, [prompt(120, 9)], tokens=1, prompt_logprobs=True, dtype=dtype).answers[0].prompt_logprobs
        for dtype in ("float32", "bfloat16", "float16")
    )

    def median(other: list[float]) -> float:
        return sorted(abs(a - b) for a, b in zip(full, other, strict=True))[len(full) // 2]

    assert 0 < median(half) < 0.01
    assert 0 < median(brain) < 0.1
