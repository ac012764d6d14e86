"""One engine, one KV cache layout, conversations with prefix-cache hits: what it answers, to compare between layouts.

    python tests/vllm_blhnc/layout_run.py --model DIR --layout BLHNC --mtp 1 --out FILE

A process runs one engine. vLLM takes the layout from ``VLLM_KV_CACHE_LAYOUT`` and does not start if a backend cannot
follow it. The same program runs on a GPU (`test_rows_gpu.py`) and, with ``VLLM_CPU_DSA=1``, on the CPU
(`test_rows_stock.py`); it imports vLLM only once its arguments are checked.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["acceptance_differs", "differences", "main"]

CONVERSATIONS, FOLLOW_UPS = 3, 3  # nine follow-ups, as in upstream's report


def differences(reference: dict[str, Any], other: dict[str, Any], tie: float) -> list[str]:
    """Where the answers of two runs differ, one sentence each; empty if they do not.

    tie: nats between the reference's two best tokens below which either is right. An answer is compared up to the
    first such place, and the rest of its conversation is not, because it goes on from another answer.
    """
    found = []
    for conversation in range(len(reference["turns"][0])):
        for number, (turn, same) in enumerate(zip(reference["turns"], other["turns"], strict=True)):
            one, two = turn[conversation], same[conversation]
            if one["cached"] != two["cached"]:
                found.append(
                    f"conversation {conversation}, turn {number}: {one['cached']} prompt tokens were cached in "
                    f"{reference['layout']} and {two['cached']} in {other['layout']}"
                )
            at = _first_difference(one["tokens"], two["tokens"])
            if at is None:
                continue
            margin = one["margins"][at] if at < len(one["margins"]) else math.inf
            if margin > tie:
                found.append(
                    f"conversation {conversation}, turn {number}, token {at}: {one['tokens'][at : at + 1]} in "
                    f"{reference['layout']} and {two['tokens'][at : at + 1]} in {other['layout']}; the next best is "
                    f"{margin:.4f} nats behind, more than {tie}"
                )
            break
    return found


def acceptance_differs(reference: dict[str, Any], other: dict[str, Any], sigmas: float = 4) -> str | None:
    """Why the share of accepted draft tokens differs by more than chance; None if it does not.

    A two-sample test of proportions. Equal runs have equal counts; the margin is for runs that parted at a tie.
    """
    counts = [(run["accepted"], run["drafted"]) for run in (reference, other)]
    if not all(drafted for _, drafted in counts):
        return f"no tokens were drafted: {counts}"
    shares = [accepted / drafted for accepted, drafted in counts]
    pooled = sum(accepted for accepted, _ in counts) / sum(drafted for _, drafted in counts)
    chance = math.sqrt(pooled * (1 - pooled) * sum(1 / drafted for _, drafted in counts))
    if abs(shares[0] - shares[1]) <= sigmas * chance:
        return None
    return (
        f"accepted drafts: {shares[0]:.2%} in {reference['layout']}, {shares[1]:.2%} in {other['layout']}, of "
        f"{[drafted for _, drafted in counts]}; chance allows {sigmas * chance:.2%}"
    )


def _first_difference(one: list[int], two: list[int]) -> int | None:
    for at, (here, there) in enumerate(zip(one, two, strict=False)):
        if here != there:
            return at
    return None if len(one) == len(two) else min(len(one), len(two))


def _conversations(first: int, appended: int, vocabulary: int) -> Iterator[list[list[int]]]:
    """What is said in each turn: the same for every layout."""
    rng = random.Random(0)
    for turn in range(1 + FOLLOW_UPS):
        length = first if turn == 0 else appended
        # Lengths that end in the middle of blocks, at different places.
        yield [[rng.randrange(33, vocabulary) for _ in range(length + 7 * i)] for i in range(CONVERSATIONS)]


def _ask(llm: Any, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=2, detokenize=False)
    requests: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    answers = []
    for output in llm.generate(requests, params, use_tqdm=False):
        margins = []
        for step in output.outputs[0].logprobs:
            best = sorted((choice.logprob for choice in step.values()), reverse=True)
            margins.append(best[0] - best[1])
        tokens_out = list(output.outputs[0].token_ids)
        answers.append({"tokens": tokens_out, "margins": margins, "cached": output.num_cached_tokens})
    return answers


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ["VLLM_KV_CACHE_LAYOUT"] = arguments.layout
    from vllm import LLM

    options: dict[str, Any] = {
        "model": arguments.model,
        "block_size": 64,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": False,
        "seed": 0,
    }
    if arguments.mtp:
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": arguments.mtp}
    llm = LLM(**options | arguments.engine)
    contexts: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
    turns = []
    for said in _conversations(arguments.first, arguments.appended, arguments.vocabulary):
        contexts = [context + words for context, words in zip(contexts, said, strict=True)]
        turns.append(_ask(llm, contexts, arguments.tokens))
        contexts = [context + answer["tokens"] for context, answer in zip(contexts, turns[-1], strict=True)]
    last = [context[: -arguments.tokens] for context in contexts]
    if not llm.reset_prefix_cache():
        raise SystemExit("the prefix cache could not be emptied to compute the last turn anew")
    anew = _ask(llm, last, arguments.tokens)
    counters = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    return {
        "layout": arguments.layout,
        "mtp": arguments.mtp,
        "turns": turns,
        "anew": anew,
        "drafted": counters.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted": counters.get("vllm:spec_decode_num_accepted_tokens", 0),
    }


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object of arguments for vllm.LLM")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--layout", required=True, choices=["LBNHC", "BLHNC"])
    parser.add_argument("--out", required=True, type=Path, help="file for the answers")
    parser.add_argument("--mtp", type=int, default=0, help="draft tokens a step (default 0: no drafts)")
    parser.add_argument("--first", type=int, default=600, help="tokens of the first prompts (default 600)")
    parser.add_argument("--appended", type=int, default=100, help="tokens each follow-up adds (default 100)")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer (default 24)")
    parser.add_argument("--vocabulary", type=int, default=127, help="prompts use the tokens 33 to this (default 127)")
    parser.add_argument("--engine", type=_object, default={}, help="further arguments of vllm.LLM, a JSON object")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the conversations and write the answers."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for name, least in {"mtp": 0, "first": 64, "appended": 1, "tokens": 2, "vocabulary": 35}.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name} {getattr(arguments, name)} is too small; at least {least}")
    if not Path(arguments.model, "config.json").is_file():
        parser.error(f"--model {arguments.model} has no config.json: give a model folder, as glm53 model make writes")
    arguments.out.write_text(json.dumps(_run(arguments)))
    sys.stdout.flush()
    os._exit(0)  # An engine's native libraries may crash in an interpreter's exit.


if __name__ == "__main__":
    main()
