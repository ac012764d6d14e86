"""``glm53 plan tier``: what a prefill group keeps of agents' prompts, with TEP and DEP, and with a DRAM tier."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glm53.deployment.facts import DENSE_BYTES, WEIGHT_BYTES
from glm53.plan.capacity import GIB, plan_capacity
from glm53.plan.config import read_config
from glm53.plan.options import TABLE, Dtype, Model, cache_dtype, errors_in_one_line, gib_bytes
from mooncake_tier.plan import Agents, Group, Shares, keep
from mooncake_tier.plan import PlanError as TierPlanError
from vllm_blhnc.plan import BLOCK_SIZE, Caches, PlanError

__all__ = ["tier"]

#: GLM-5.3's NVFP4 checkpoint, in GiB to a tenth: what is in routed experts, and all else.
_EXPERTS = round((WEIGHT_BYTES["nvfp4"] - DENSE_BYTES["nvfp4"]) / GIB, 1)
_SHARED = round(DENSE_BYTES["nvfp4"] / GIB, 1)


def tier(
    model: Model,
    hbm_gib: Annotated[float, typer.Option(help="Memory of one GPU in GiB.")] = 173.0,
    experts_gib: Annotated[float, typer.Option(help="Weights of all experts in GiB, split over the GPUs.")] = _EXPERTS,
    shared_gib: Annotated[
        float, typer.Option(help="All other weights in GiB: split with TEP, whole on each GPU with DEP.")
    ] = _SHARED,
    gpus: Annotated[int, typer.Option(min=1, max=1 << 12, help="GPUs of the prefill group.")] = 8,
    utilization: Annotated[float, typer.Option(help="vLLM's --gpu-memory-utilization.")] = 0.92,
    runtime_gib: Annotated[float, typer.Option(help="Activations, CUDA graphs and NCCL of one GPU in GiB.")] = 6.0,
    exchange_gib: Annotated[
        float, typer.Option(help="With DEP, further buffers of one GPU for tokens of all ranks, in GiB.")
    ] = 8.0,
    dtype: Dtype = "fp8",
    tier_gib: Annotated[float, typer.Option(help="DRAM of the tier in GiB, of all the group's nodes.")] = 0.0,
    sessions: Annotated[int, typer.Option(help="Agents at the same time.")] = 66,
    prompt: Annotated[int, typer.Option(help="Tokens of an agent's first prompt.")] = 140_000,
    append: Annotated[int, typer.Option(help="Tokens that each turn adds.")] = 6_000,
    turns: Annotated[int, typer.Option(help="Turns of each agent.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the order in which agents come.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Plan what stays cached of agents' prompts: with TEP, with DEP, and with a DRAM tier.

    An MLA cache is whole on every tensor-parallel rank, so a TEP group keeps what one
    of its GPUs keeps. A DEP group keeps as much as all of them, less the weights that
    are then whole on each. The defaults are a group of GB200 with GLM-5.3 in NVFP4.

    Agents come in a random order that the seed fixes; each comes to one rank always.
    What must go is the end of the prompt that was used least recently.

    Example: glm53 plan tier --model config.json --sessions 66 --tier-gib 1024
    """
    with errors_in_one_line():
        try:
            data = _plan(
                _block_bytes(model, dtype),
                (hbm_gib, experts_gib, shared_gib, runtime_gib, exchange_gib, tier_gib),
                gpus,
                utilization,
                Agents(sessions=sessions, prompt=prompt, append=append, turns=turns, seed=seed),
            )
        except TierPlanError as error:
            raise PlanError(str(error)) from error
        if as_json:
            print(json.dumps({"model": str(model), "dtype": cache_dtype(dtype), **data}, indent=1))
        else:
            _show(data)


def _block_bytes(model: Any, dtype: str) -> int:
    caches = Caches.of(read_config(model))
    return plan_capacity(caches, pool=1 << 40, workspace=0, dtype=cache_dtype(dtype)).block_bytes


def _plan(block_bytes: int, gib: tuple[float, ...], gpus: int, utilization: float, agents: Agents) -> dict[str, Any]:
    if not 0 < utilization <= 1:
        raise PlanError(f"--utilization {utilization}: it is a fraction of the GPU's memory. Give 0.92, for example.")
    names = ("--hbm-gib", "--experts-gib", "--shared-gib", "--runtime-gib", "--exchange-gib", "--tier-gib")
    hbm, experts, shared, runtime, exchange, dram = map(gib_bytes, names, gib)
    group = Group(
        gpus=gpus,
        budget=int(hbm * utilization),
        experts=experts,
        shared=shared,
        runtime=runtime,
        exchange=exchange,
        block_bytes=block_bytes,
        block_size=BLOCK_SIZE,
    )
    tier_tokens = dram // block_bytes * BLOCK_SIZE
    shapes = {
        "TEP": (group.tep_pool, group.tep_tokens, group.tep_tokens, 1),
        "DEP": (group.dep_pool, group.dep_tokens, group.dep_rank_tokens, gpus),
    }
    return {
        "gpus": gpus,
        "block_bytes": block_bytes,
        "block_size": BLOCK_SIZE,
        "ratio": group.ratio,
        "tier_tokens": tier_tokens,
        "shapes": {
            name: {
                "pool_bytes_a_gpu": pool,
                "tokens": tokens,
                "tokens_a_rank": rank,
                "ranks": ranks,
                "sessions_kept": tokens // agents.prompt,
                "without_tier": _shares(keep(agents, rank, ranks)),
                "with_tier": _shares(keep(agents, rank, ranks, tier_tokens)),
            }
            for name, (pool, tokens, rank, ranks) in shapes.items()
        },
        "agents": {
            "sessions": agents.sessions,
            "prompt": agents.prompt,
            "append": agents.append,
            "turns": agents.turns,
        },
        "terms_bytes": {name[2:-4]: gib_bytes(name, value) for name, value in zip(names, gib, strict=True)},
    }


def _shares(shares: Shares) -> dict[str, Any]:
    return {
        "prompt_tokens": shares.prompts,
        "gpu": shares.gpu,
        "tier": shares.tier,
        "recomputed": shares.recomputed,
        "hit_rate": shares.hit_rate,
        "best_hit_rate": shares.best,
    }


def _show(data: dict[str, Any]) -> None:
    out = Console(highlight=False)
    agents = data["agents"]
    table = Table(
        *("shape", "KV GiB a GPU", "tokens kept", "prompts", "hit rate", "with tier", "recomputed"),
        title=f"{data['gpus']} GPUs, {data['block_bytes'] / data['block_size']:,.0f} bytes a token",
        **TABLE,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in data["shapes"].items():
        alone, both = one["without_tier"], one["with_tier"]
        table.add_row(
            f"{name}{data['gpus']}",
            f"{one['pool_bytes_a_gpu'] / GIB:.1f}",
            f"{one['tokens']:,}",
            f"{one['sessions_kept']:,}",
            f"{alone['hit_rate']:.1%}",
            f"{both['hit_rate']:.1%}",
            f"{both['recomputed'] / both['prompt_tokens']:.1%}",
        )
    out.print(table)
    best = data["shapes"]["DEP"]["without_tier"]["best_hit_rate"]
    out.print(f"DEP keeps {data['ratio']:.2f} times the tokens of TEP; the tier {data['tier_tokens']:,} tokens")
    out.print(
        f"{agents['sessions']} agents, {agents['prompt']:,} tokens and {agents['append']:,} more a turn, "
        f"{agents['turns']} turns: at best {best:.1%} are hits"
    )
