"""The demo's three runs and what they prove: block rows, the default layout, and one aggregated worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError

from glm53.demo.cache import cache_figures
from glm53.demo.client import LONGEST_ANSWER, Turn, calls_as_data, run_session
from glm53.demo.tier import drive
from glm53.deployment import Deployment
from glm53.local.stack import Progress, Stack, StackError, running_stack

__all__ = ["Plan", "first_difference", "run_demo"]


@dataclass(frozen=True)
class Plan:
    """How much the agents do: sessions at once, turns each, tokens they say first and tokens each turn appends."""

    sessions: int
    turns: int
    prompt_tokens: int
    append_tokens: int

    def longest(self) -> int:
        """Upper bound of a session's tokens: first prompt with tools and template, then call and result a turn."""
        return 1500 + self.prompt_tokens + (self.turns - 1) * (self.append_tokens + 150) + LONGEST_ANSWER


@dataclass(frozen=True)
class Run:
    """One deployment's answers and KV transfers."""

    layout: str
    turns: list[Turn]
    transfers: list[dict[str, Any]]
    seconds: float


def run_demo(deployment: Deployment, run_dir: Path, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run all three, and the DRAM tier by itself if there is one, and return the report. Raises StackError.

    The report is the JSON of ``glm53 agent-demo --json``.
    """
    began = time.monotonic()
    untiered = deployment.model_copy(update={"tier": None})
    rows, control = _drive(untiered.with_layout("BLHNC"), run_dir, plan, progress, control=True)
    default, default_control = _drive(untiered.with_layout("stock"), run_dir, plan, progress, control=True)
    aggregated, _ = _drive(untiered.aggregate(), run_dir, plan, progress)
    tier = drive(deployment, run_dir, progress) if deployment.tier else None
    difference = first_difference(aggregated.turns, rows.turns)
    report = {
        "outputs_equal": difference is None,
        "first_difference": difference,
        "negative_control": bool(control and control["holds"]),
        **_as_data(rows),
        "baseline": {
            "outputs_equal": first_difference(aggregated.turns, default.turns) is None,
            "negative_control": bool(default_control and default_control["holds"]),
            **_as_data(default),
        },
        "aggregated": _as_data(aggregated),
        "kv_cache": cache_figures(deployment, rows.transfers),
        "tier": tier,
        "deployment": deployment.model_dump(mode="json"),
        "plan": vars(plan),
        "wall_s": round(time.monotonic() - began, 1),
    }
    report["summary"] = _summary(rows, default, aggregated)
    return report


def first_difference(expected: Sequence[Turn], seen: Sequence[Turn]) -> dict[str, Any] | None:
    """The first turn whose answer or prompt differs, as data; None if all are equal."""
    if len(expected) != len(seen):
        return {"turns_expected": len(expected), "turns_seen": len(seen)}
    for one, other in zip(expected, seen, strict=True):
        if (one.answer, one.prompt_tokens) != (other.answer, other.prompt_tokens):
            return {
                "session": one.session,
                "turn": one.turn,
                "expected": vars(one.answer) | {"prompt_tokens": one.prompt_tokens},
                "seen": vars(other.answer) | {"prompt_tokens": other.prompt_tokens},
            }
    return None


def _drive(
    deployment: Deployment, run_dir: Path, plan: Plan, progress: Progress, *, control: bool = False
) -> tuple[Run, dict[str, Any] | None]:
    label = deployment.kv_transfer.layout if deployment.disaggregated else "aggregated"
    with running_stack(Stack(deployment, run_dir / label), progress) as stack:
        before = len(stack.transfers())
        began = time.monotonic()
        progress(f"{label}: {plan.sessions} agents x {plan.turns} turns")
        turns = _sessions(stack, plan)
        seconds = time.monotonic() - began
        transfers = stack.transfers()[before:]
        progress(f"{label}: {len(turns)} turns in {seconds:.0f} s, {len(transfers)} KV transfers")
        held = _negative_control(stack) if control else None
        if held is not None:
            progress(f"{label}: negative control {'holds' if held['holds'] else 'FAILED'}")
        return Run(label, turns, transfers, seconds), held


def _sessions(stack: Stack, plan: Plan) -> list[Turn]:
    client = OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=600.0, max_retries=0)

    def one(session: int) -> list[Turn]:
        return run_session(
            client,
            stack.deployment.model.served_name,
            session,
            plan.turns,
            plan.prompt_tokens,
            plan.append_tokens,
        )

    with ThreadPoolExecutor(plan.sessions) as pool:
        try:
            done = list(pool.map(one, range(plan.sessions)))
        except OpenAIError as error:
            stack.check()  # a dead process is the better explanation
            raise StackError(f"a request failed: {error}. The logs are in {stack.run_dir}.") from error
    return [turn for session in done for turn in session]


def _negative_control(stack: Stack) -> dict[str, Any]:
    """`vllm_blhnc.probe` against the running workers, in a process of its own with their environment."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_blhnc.probe"),
            *("--model", stack.deployment.model.served_name),
            *("--block-size", str(stack.deployment.engine.block_size)),
        ],
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    for line in process.stdout.splitlines():
        if line.startswith('{"same"'):
            result: dict[str, Any] = json.loads(line)
            return result
    raise StackError(f"the negative control did not run:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")


def _as_data(run: Run) -> dict[str, Any]:
    return {
        "layout": run.layout,
        "turns": [
            {
                "session": turn.session,
                "turn": turn.turn,
                "prompt_tokens": turn.prompt_tokens,
                "cached_tokens": turn.cached_tokens,
                "router_hit_rate": turn.router_hit_rate,
                "completion_tokens": turn.answer.completion_tokens,
                "ttft_s": turn.ttft_s,
                "itl_p50_s": turn.itl_p50_s,
                "tool_calls": calls_as_data(turn),
                "finish_reason": turn.answer.finish_reason,
            }
            for turn in run.turns
        ],
        "transfers": [
            {
                "blocks": one["blocks"],
                "runs": one["runs"],
                "regions": one["regions"],
                "descriptors": one["descriptors"],
                "bytes": one["nbytes"],
                "seconds": one["transfer_us"] / 1e6,
            }
            for one in run.transfers
        ],
        "seconds": round(run.seconds, 2),
    }


def _summary(rows: Run, default: Run, aggregated: Run) -> list[str]:
    """One line each on what block rows and what separate prefill did."""

    def total(run: Run, key: str) -> int:
        return sum(one[key] for one in run.transfers)

    def mean(values: Iterable[float]) -> float:
        listed = list(values)
        return sum(listed) / len(listed) if listed else 0.0

    before, after = total(default, "descriptors"), total(rows, "descriptors")
    lines = [
        f"Block rows (BLHNC): {after} descriptors instead of {before} "
        f"({before / max(1, after):.1f}x fewer) for {total(rows, 'blocks')} blocks and "
        f"{total(rows, 'nbytes') / 1e6:.1f} MB in {len(rows.transfers)} transfers."
    ]
    cached = sum(turn.cached_tokens for turn in rows.turns)
    prompts = sum(turn.prompt_tokens for turn in rows.turns)
    ours, one = (1e3 * mean(turn.itl_p50_s for turn in run.turns) for run in (rows, aggregated))
    lines.append(
        f"Prefill and decode apart: {len(rows.transfers)} KV transfers fed the decode workers, "
        f"{cached / max(1, prompts):.0%} of the prompt tokens came from the prefill workers' caches, mean time "
        f"between tokens {ours:.0f} ms against {one:.0f} ms on one worker that does both."
    )
    return lines
