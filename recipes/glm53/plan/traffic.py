"""``glm53 plan traffic``: prefill and decode groups for a traffic profile, with every step of the arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glm53.deployment import Deployment, DeploymentError, load
from glm53.plan.chart import Line, chart
from glm53.plan.demand import Demand, Speed, Traffic, new_tokens, plan_demand, turn_rate, turn_ttft, with_sessions
from glm53.plan.group import GroupKv, glm53_caches, group_kv
from glm53.plan.options import TABLE, errors_in_one_line
from vllm_blhnc.plan import PlanError, Transfer, plan_transfer

__all__ = ["traffic"]

#: Published: 66 agents at 101 tokens a second each, on one prefill and four decode groups.
_SESSIONS, _USER_RATE, _PREFILL, _DECODE = 66, 101, 1, 4
#: Published length of runs in fragmented caches, in blocks (docs/blhnc.md).
_RUN = 10

_CHUNKS = (1024, 2048, 4096, 6144, 8192, 12288, 16384)


def traffic(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file, for GPUs.", metavar="RECIPE")],
    sessions: Annotated[int, typer.Option(help="Agents at the same time.")] = _SESSIONS,
    prompt: Annotated[int, typer.Option(help="Tokens of a turn's prompt.")] = 140_000,
    append: Annotated[int, typer.Option(help="Tokens of it that are new; the rest is reused.")] = 6_000,
    cold: Annotated[float, typer.Option(help="Share of turns of which nothing is cached.")] = 0.0625,
    output: Annotated[int, typer.Option(help="Tokens of an answer.")] = 1_000,
    tool_seconds: Annotated[float, typer.Option(help="Seconds between an answer and the next turn.")] = 20.0,
    ttft_ms: Annotated[float, typer.Option(help="Target: milliseconds to the first token.")] = 2000.0,
    itl_ms: Annotated[
        float | None, typer.Option(help="Target: milliseconds between tokens.", show_default="1000 / 101, published")
    ] = None,
    load_share: Annotated[
        float, typer.Option("--load", help="Share of its speed up to which a prefill group is planned.")
    ] = 0.6,
    prefill_tokens_per_s: Annotated[
        float | None,
        typer.Option(
            min=1, help="Speed of one prefill group, measured.", show_default="what the published load implies"
        ),
    ] = None,
    decode_sessions: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Agents that one decode group serves within the target, measured.", show_default="16.5"
        ),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw the plan into this SVG file.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Plan how many prefill and decode groups a traffic profile needs, and show the arithmetic.

    Capacity, bytes and descriptors follow from the recipe. How fast a group computes does
    not: measure it, or take the least that the published load implies: 66 agents at 101
    tokens/s each, on one prefill and four decode groups.

    Queues are not computed here: `glm53 simulate` replays them.

    Example: glm53 plan traffic recipes/glm53-gb200-nvl72.yaml --sessions 200
    """
    with errors_in_one_line():
        try:
            deployment = load(recipe)
        except DeploymentError as error:
            raise PlanError(str(error)) from error
        if not deployment.disaggregated:
            raise PlanError(
                "workers.prefill=0: groups are planned for prefill and decode apart. Give a recipe that has both, such "
                "as recipes/glm53-gb200-nvl72.yaml."
            )
        profile = Traffic(
            sessions=sessions,
            prompt=prompt,
            append=append,
            cold=cold,
            output=output,
            tool_seconds=tool_seconds,
            ttft_ms=ttft_ms,
            itl_ms=1000 / _USER_RATE if itl_ms is None else itl_ms,
            load=load_share,
        )
        prefill, decode = group_kv(deployment, deployment.roles.prefill), group_kv(deployment, deployment.roles.decode)
        speed = _speed(profile, prefill_tokens_per_s, decode_sessions)
        chunk = deployment.roles.prefill.max_batched_tokens or deployment.engine.max_batched_tokens
        tier = deployment.tier.memory * deployment.nodes("prefill") if deployment.tier else 0
        plan = plan_demand(profile, speed, prefill, decode, chunk, tier)
        moved = _transfer(deployment, profile)
        if svg:
            _draw(svg, _chart(profile, speed, prefill, decode, chunk))
        if as_json:
            print(json.dumps(_data(recipe, profile, speed, plan, moved), indent=1))
        else:
            _show(recipe, profile, speed, plan, moved)


def _speed(profile: Traffic, prefill: float | None, sessions: float | None) -> Speed:
    """Measured speeds, or what the published load implies for this profile's turns."""
    target = 1000 / _USER_RATE
    if sessions is None and profile.itl_ms < 0.999 * target:
        raise PlanError(
            f"--itl-ms {profile.itl_ms:g}: {target:.3g} ms is the only speed that is published, with 16.5 agents a "
            "decode group. For less, measure how many agents a group serves, and give --decode-sessions."
        )
    published = with_sessions(profile, _SESSIONS)
    least = turn_rate(published) * new_tokens(published) / _PREFILL
    implied = f"not published; the least with which one group serves the published {_SESSIONS} agents at these turns"
    known = f"published: {_SESSIONS} agents at {_USER_RATE} tokens/s on {_DECODE} groups"
    return Speed(
        prefill=least / profile.load if prefill is None else prefill,
        decode_sessions=_SESSIONS / _DECODE if sessions is None else sessions,
        sources=(
            f"{implied} and load" if prefill is None else "given by --prefill-tokens-per-s",
            known if sessions is None else "given by --decode-sessions",
        ),
        measured=prefill is not None,
    )


def _transfer(deployment: Deployment, profile: Traffic) -> Transfer:
    return plan_transfer(
        glm53_caches(deployment),
        tokens=profile.prompt,
        run_length=_RUN,
        release=deployment.versions.vllm_line,
        dtype=deployment.engine.kv_cache_dtype,
        backend=deployment.engine.attention_backend,
    )


def _chart(profile: Traffic, speed: Speed, prefill: GroupKv, decode: GroupKv, chunk: int) -> str:
    counts = [max(1, profile.sessions * part // 8) for part in range(1, 25)]
    plans = [plan_demand(with_sessions(profile, count), speed, prefill, decode, chunk) for count in counts]
    rank = speed.prefill / prefill.ranks
    by_agents: list[Line] = [
        ("prefill groups", "#1f77b4", [(n, plan.prefill_groups) for n, plan in zip(counts, plans, strict=True)]),
        ("decode groups", "#d62728", [(n, plan.decode_groups) for n, plan in zip(counts, plans, strict=True)]),
    ]
    by_chunk: list[Line] = [
        ("TTFT, ms", "#2ca02c", [(size, turn_ttft(profile, rank, size)) for size in _CHUNKS]),
        ("target", "#999999", [(size, profile.ttft_ms) for size in _CHUNKS]),
    ]
    return chart([("groups", "agents", by_agents), ("a warm turn's first token", "chunk of prefill, tokens", by_chunk)])


def _draw(path: Path, svg: str) -> None:
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"--svg {path}: it cannot be written: {error.strerror}. Name a file in a folder of yours."
        ) from error


def _data(recipe: Path, profile: Traffic, speed: Speed, plan: Demand, moved: Transfer) -> dict[str, Any]:
    return {
        "recipe": str(recipe),
        "profile": vars(profile),
        "prefill_groups": plan.prefill_groups,
        "decode_groups": plan.decode_groups,
        "ratio": plan.ratio,
        "ttft_ms": plan.ttft_ms,
        "ttft_met": _met(plan, profile, speed),
        "speeds": {
            "prefill_tokens_per_s": speed.prefill,
            "prefill_source": speed.sources[0],
            "decode_sessions": speed.decode_sessions,
            "decode_source": speed.sources[1],
        },
        "transfer": _of_transfer(moved, profile),
        "steps": [vars(step) for step in plan.steps],
    }


def _of_transfer(moved: Transfer, profile: Traffic) -> dict[str, Any]:
    return {
        "blocks": moved.blocks,
        "run_length": moved.run_length,
        "descriptors": moved.blhnc.descriptors,
        "descriptors_stock_layout": moved.lbnhc.descriptors,
        "bytes": moved.blhnc.nbytes,
        "bytes_per_s": moved.blhnc.nbytes * turn_rate(profile),
    }


def _show(recipe: Path, profile: Traffic, speed: Speed, plan: Demand, moved: Transfer) -> None:
    out = Console(highlight=False)
    table = Table("step", "arithmetic", "=", "", title=f"{recipe}, {profile.sessions:,} agents", **TABLE)
    table.columns[2].justify = "right"
    for step in plan.steps:
        table.add_row(
            step.name, step.arithmetic, f"{step.value:,.4g}" if step.value < 1000 else f"{step.value:,.0f}", step.unit
        )
    out.print(table)
    for step in plan.steps:
        if step.source:
            out.print(f"{step.name}: {step.source}")
    one = _of_transfer(moved, profile)
    out.print(
        f"KV of a turn: {one['blocks']:,} blocks, {one['bytes'] / 1e9:.2f} GB, {one['descriptors']:,} descriptors with "
        f"block rows and {one['descriptors_stock_layout']:,} without, in runs of {_RUN}; all turns together "
        f"{one['bytes_per_s'] / 1e9:.1f} GB/s"
    )
    out.print(f"{plan.prefill_groups} prefill and {plan.decode_groups} decode groups. {_verdict(plan, profile, speed)}")


def _met(plan: Demand, profile: Traffic, speed: Speed) -> bool | None:
    """Whether a turn that waits for nobody is in time; None if only a bound of the speed is known, and it is not."""
    met = plan.ttft_ms <= profile.ttft_ms
    return met if met or speed.measured else None


def _verdict(plan: Demand, profile: Traffic, speed: Speed) -> str:
    at_most = "" if speed.measured else "at most "
    found = f"TTFT of a warm turn without queue: {at_most}{plan.ttft_ms:,.0f} ms, target {profile.ttft_ms:,.0f} ms: "
    says = {
        True: "met.",
        False: "missed with any number of groups. Use smaller chunks, or groups that compute faster.",
        None: "not known. Measure the speed of a prefill group, and give --prefill-tokens-per-s.",
    }
    return found + says[_met(plan, profile, speed)]
