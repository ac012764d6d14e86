"""``glm53 simulate``: a recipe's choices under agents' load, on Dynamo's own simulator."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from glm53.deployment import Deployment, DeploymentError, load
from glm53.deployment.facts import DENSE_BYTES
from glm53.plan.group import group_kv, prefix_ratio
from glm53.simulate import published, trace
from glm53.simulate.compare import COMPARISONS, RATIOS, Replays, rows
from glm53.simulate.pool import Pool, pool
from glm53.simulate.scenario import LINK_GB, Scenario, baseline
from glm53.simulate.show import show
from glm53.simulate.simulator import SimulationError, probe
from glm53.simulate.timing import Speeds
from glm53.simulate.trace import Agents, TraceError
from vllm_blhnc.plan import PlanError

__all__ = ["PREFILL", "simulate"]

#: Tokens a second of one prefill group where none is measured: with it, the default trace and chunks of 8192, the
#: simulated median wait is the published one (docs/simulate.md).
PREFILL = 100_000.0

_QUICK = {"sessions": 6, "rounds": 8, "turns": 4, "output": 50, "spread_seconds": 30.0}
_QUICK_RATIOS = (2, 4)

_err = Console(stderr=True)


def simulate(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file, for GPUs.", metavar="RECIPE")],
    trace_name: Annotated[
        str,
        typer.Option("--trace", help="`agents`, generated; or a JSONL file in Mooncake's format.", metavar="TRACE"),
    ] = "agents",
    trace_block: Annotated[int, typer.Option(min=1, help="Tokens that a hash of the trace stands for.")] = 512,
    only: Annotated[
        str | None, typer.Option(help=f"Comparisons, with commas between: {', '.join(COMPARISONS)}.", metavar="NAMES")
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="Agents at the same time.", show_default="66")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of a task's first prompt.", show_default="140,000")] = None,
    append: Annotated[int | None, typer.Option(help="Tokens that each turn adds.", show_default="6,000")] = None,
    turns: Annotated[int | None, typer.Option(help="Turns of a task; the next is cold.", show_default="16")] = None,
    rounds: Annotated[int | None, typer.Option(help="Turns of each agent in all.", show_default="16")] = None,
    output: Annotated[int | None, typer.Option(help="Tokens of an answer.", show_default="1,000")] = None,
    tool_seconds: Annotated[
        float | None, typer.Option(help="Mean seconds between answer and next turn.", show_default="20")
    ] = None,
    shared: Annotated[int | None, typer.Option(help="Tokens that all prompts begin with.", show_default="0")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trace.")] = 0,
    prefill_tokens_per_s: Annotated[
        float | None,
        typer.Option(min=1, help="Speed of one prefill group, measured.", show_default=f"{PREFILL:,.0f}, see the docs"),
    ] = None,
    decode_ms: Annotated[
        float | None,
        typer.Option(
            min=1, help="Milliseconds between a user's tokens, measured.", show_default="1000 / 101, published"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Runs of each scenario; the median is shown.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes that all runs together may take.")] = 30.0,
    quick: Annotated[bool, typer.Option("--quick", help="A few agents and turns: that it runs, no more.")] = False,
    python: Annotated[str, typer.Option(help="Interpreter with ai-dynamo.", show_default="this one")] = sys.executable,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for the trace, configurations and records.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Replay agents' turns on the recipe's groups, on the CPU, and compare its choices.

    Runs Dynamo's own mocker workers (vLLM's scheduler and prefix cache, ranks in step) and its KV router in virtual
    time, at the recipe's numbers of groups, ranks and blocks. How fast a group computes is not simulated but given.

    Exit code 0: it ran; 1: a replay failed or took too long; 2: wrong usage, or no Dynamo.

    Example: glm53 simulate recipes/glm53-gb200-nvl72.yaml --trace agents
    """
    given: dict[str, Any] = {"sessions": sessions, "prompt": prompt, "append": append, "turns": turns, "rounds": rounds}
    given |= {"output": output, "tool_seconds": tool_seconds, "shared": shared, "seed": seed}
    try:
        deployment = load(recipe)
        base, names = baseline(deployment), _names(only)
        defaults: dict[str, Any] = _QUICK if quick else {}
        agents = Agents(**(defaults | {key: value for key, value in given.items() if value is not None}))
        path = _given(trace_name, trace_block, agents, deployment)
        speeds = _speeds(prefill_tokens_per_s, decode_ms)
        wanted = rows(base, names, _QUICK_RATIOS if quick else RATIOS)
        if not wanted:
            raise PlanError(f"--only {only}: this recipe has no tier to compare. Give it tier.memory, or compare more.")
        group_kv(deployment, base.prefill)  # refuses a recipe that has no room, before anything runs
        found = probe(python)
    except (DeploymentError, PlanError, TraceError, SimulationError) as error:
        _fail(str(error), 2)
    signal.signal(signal.SIGTERM, _interrupted)  # so that a replay under way ends, too
    with ExitStack() as stack:
        folder = keep.resolve() if keep else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glm53-")))
        deadline = time.monotonic() + 60 * minutes
        replays = Replays(deployment, agents, speeds, folder, python, deadline, _say, repeats, path, trace_block)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            done = replays.run(wanted)
        except (SimulationError, OSError) as error:
            _fail(str(error), 1)
        except (PlanError, TraceError) as error:
            _fail(str(error), 2)
        except KeyboardInterrupt:
            _fail("interrupted; what ran has been ended", 130)
    outcomes, spreads = replays.outcomes(wanted, done), replays.spreads(wanted, done)
    by_name: dict[str, dict[str, Any]] = {}
    for row, one in zip(wanted, outcomes, strict=True):
        by_name.setdefault(row.comparison, {})[row.label] = one
    pooled = pool(deployment, base, agents) if "tier" in by_name and path is None else None
    if path:
        total, again = trace.repeats(trace.read(path, trace_block), trace_block)
    else:
        total, again = trace.repeats(agents.requests(), agents.block, agents.measured)
    told = [] if quick or path else published.checks(by_name, *_prefix(deployment, base))
    data = {
        "recipe": str(recipe),
        "dynamo": found,
        "trace": str(path) if path else asdict(agents),
        "best_hit_rate": again / total,
        "quick": quick,
        "repeats": repeats,
        "speeds": {
            "prefill": speeds.prefill,
            "prefill_source": speeds.sources[0],
            "decode_ms": speeds.decode_ms,
            "decode_ms_source": speeds.sources[1],
        },
        "rows": [
            {"comparison": row.comparison, "label": row.label, "scenario": row.scenario.key, "load": row.load}
            | {"gpus": row.scenario.gpus, "wait_p50_of_repeats": spread}
            | one.data()
            for row, one, spread in zip(wanted, outcomes, spreads, strict=True)
        ],
        "checks": [check.data() for check in told],
        "shared_pool": asdict(pooled) if pooled else None,
        "not_simulated": published.NOT_SIMULATED,
        "notes": _notes(quick, bool(path), base, pooled),
    }
    if as_json:
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        show(data, Console(highlight=False))


def _names(only: str | None) -> list[str]:
    names = list(COMPARISONS) if only is None else only.split(",")
    if unknown := [name for name in names if name not in COMPARISONS]:
        raise PlanError(f"--only {only}: {unknown[0]!r} is no comparison. Allowed are {', '.join(COMPARISONS)}.")
    return [name for name in COMPARISONS if name in names]


def _given(name: str, block: int, agents: Agents, deployment: Deployment) -> Path | None:
    """A real trace's file, read once so that a wrong line is told at once; None for agents'."""
    most = deployment.engine.max_model_len
    if name == "agents":
        if agents.longest > most:
            raise PlanError(
                f"the longest prompt with its answer has {agents.longest:,} tokens, above the recipe's "
                f"engine.max_model_len={most:,}. Lower --prompt, --append or --turns."
            )
        return None
    path = Path(name)
    longest = max(request.input + request.output for request in trace.read(path, block))
    if longest > most:
        raise PlanError(
            f"--trace {name}: its longest prompt with its answer has {longest:,} tokens, above engine.max_model_len="
            f"{most:,} of the recipe. Leave it out, or raise the limit."
        )
    return path.resolve()


def _speeds(prefill: float | None, decode_ms: float | None) -> Speeds:
    calibrated = "not published; set so that the wait with chunks of 8192 is the published 550 ms"
    return Speeds(
        prefill=PREFILL if prefill is None else prefill,
        decode_ms=published.DECODE_MS if decode_ms is None else decode_ms,
        sources=(
            calibrated if prefill is None else "given by --prefill-tokens-per-s",
            "published, 101 tokens/s a user, whatever the load" if decode_ms is None else "given by --decode-ms",
        ),
    )


def _prefix(deployment: Deployment, base: Scenario) -> tuple[float, float]:
    return prefix_ratio(deployment, base.prefill), prefix_ratio(deployment, base.prefill, DENSE_BYTES["fp8"])


def _notes(quick: bool, real: bool, base: Scenario, pooled: Pool | None) -> list[str]:
    notes = ["The KV router chooses between equals at random: repeated runs differ (--repeats)."]
    if base.tier:
        notes.append(
            f"The tier is one part a rank, at {LINK_GB:.0f} GB/s: with a pool that ranks share, Dynamo 1.6.1's replay "
            "ends in an error as soon as a block is evicted under the KV router. Under round robin it runs (pool)."
        )
    if pooled:
        notes.append(
            f"By the arithmetic of `glm53 plan tier`, such a pool gives {pooled.shared:.1%} hits instead of "
            f"{pooled.without:.1%} without, if each agent stays on one rank; {pooled.best:.1%} is the most possible."
        )
    if quick:
        notes.append("--quick: too little load to tell anything; nothing was held against published figures.")
    if real:
        notes.append("A real trace has no published figures to be held against, and the same load at every ratio.")
    return notes


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> NoReturn:
    _say(f"glm53: {message}")
    raise typer.Exit(code)


def _say(message: str) -> None:
    _err.print(message, highlight=False, markup=False, soft_wrap=True)
