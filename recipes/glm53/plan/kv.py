"""``glm53 plan kv``: tokens of KV that one GPU holds, by cache dtype."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from glm53.plan.capacity import GIB, WORKSPACES, Capacity, Memory, plan_capacity, workspace_bytes
from glm53.plan.config import ConfigError, read_config
from vllm_blhnc.plan import DTYPES, RELEASES, Caches, PlanError

__all__ = ["kv"]

#: What every plan is compared with.
_COMPARED = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")


def kv(
    model: Annotated[Path, typer.Option(help="The model's config.json, or a folder that holds it.", metavar="PATH")],
    hbm_gib: Annotated[float | None, typer.Option(help="Memory of one GPU in GiB.")] = None,
    weights_gib: Annotated[float | None, typer.Option(help="Weights of the whole model in GiB.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share the weights.")] = 1,
    dtype: Annotated[str, typer.Option(help="Dtype of the KV cache: " + ", ".join(DTYPES) + ".")] = "nvfp4_ds_mla",
    utilization: Annotated[float, typer.Option(help="vLLM's --gpu-memory-utilization.")] = 0.92,
    runtime_gib: Annotated[float, typer.Option(help="Activations, CUDA graphs and NCCL of one GPU in GiB.")] = 6.0,
    pool_gib: Annotated[
        float | None,
        typer.Option(help="Memory for KV in GiB, as vLLM logs it, instead of computing it from the GPU's."),
    ] = None,
    workspace: Annotated[
        str,
        typer.Option(help="What prefill keeps aside: " + ", ".join(WORKSPACES) + ", or a number of GiB."),
    ] = "none",
    max_model_len: Annotated[int, typer.Option(min=1, help="vLLM's --max-model-len; sizes the workspace.")] = 1 << 20,
    layout: Annotated[str, typer.Option(help="BLHNC pads block rows, LBNHC does not.")] = "BLHNC",
    vllm: Annotated[
        str | None, typer.Option(help="vLLM release: " + ", ".join(RELEASES) + ".", show_default="the last")
    ] = None,
    mtp: Annotated[
        int | None,
        typer.Option(help="Multi-token-prediction layers that are served.", show_default="all that the model has"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Plan how many tokens of KV one GPU holds, and what each cache dtype would hold.

    An MLA cache is whole on every tensor-parallel rank: a group of GPUs holds what one
    of them holds, so --tp only spreads the weights.

    A workspace is memory that is set aside before the cache is sized. It is charged to
    the planned dtype; the other rows of the table are without one.

    Example: glm53 plan kv --model config.json --hbm-gib 180 --weights-gib 400 --tp 4
    """
    try:
        caches = Caches.of(read_config(model), mtp)
        pool, terms = _pool(hbm_gib, weights_gib, tp, utilization, runtime_gib, pool_gib)
        aside = _workspace(workspace, max_model_len)
        options: dict[str, Any] = {"pool": pool, "layout": layout, "release": vllm}
        plan = plan_capacity(caches, dtype=dtype, workspace=aside, **options)
        others = {name: plan_capacity(caches, dtype=name, workspace=0, **options) for name in _COMPARED}
    except (ConfigError, PlanError) as error:
        Console(stderr=True).print(f"glm53: {error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        dtypes = {name: _figures(other) for name, other in others.items()}
        terms |= {"workspace": workspace, "max_model_len": max_model_len, "tp": tp}
        print(json.dumps({"model": str(model), **_figures(plan), "terms": terms, "dtypes": dtypes}, indent=1))
    else:
        _show(plan, others)


def _figures(plan: Capacity) -> dict[str, Any]:
    return {
        "dtype": plan.dtype,
        "layout": plan.layout,
        "tokens": plan.tokens,
        "blocks": plan.blocks,
        "bytes_per_token": plan.bytes_per_token,
        "block_bytes": plan.block_bytes,
        "block_padding": plan.block_bytes - plan.row.payload,
        "indexer_share": plan.indexer_share,
        "pool_bytes": plan.pool,
        "workspace_bytes": plan.workspace,
    }


def _pool(
    hbm: float | None, weights: float | None, tp: int, utilization: float, runtime: float, pool: float | None
) -> tuple[int, dict[str, Any]]:
    if pool is not None:
        if hbm is not None or weights is not None:
            raise PlanError("--pool-gib is what --hbm-gib and --weights-gib would give. Give it alone, or those two.")
        return _bytes("--pool-gib", pool), {"pool_gib": pool}
    if hbm is None or weights is None:
        raise PlanError("the memory for KV is not known. Give --hbm-gib and --weights-gib, or --pool-gib.")
    if not 0 < utilization <= 1:
        raise PlanError(f"--utilization {utilization}: it is a fraction of the GPU's memory. Give 0.92, for example.")
    memory = Memory(
        _bytes("--hbm-gib", hbm), utilization, _bytes("--weights-gib", weights), tp, _bytes("--runtime-gib", runtime)
    )
    if memory.pool <= 0:
        raise PlanError(
            f"{hbm} GiB x {utilization} minus {weights} / {tp} GiB of weights and {runtime} GiB of runtime leaves "
            f"{memory.pool / GIB:.1f} GiB for KV. Use more GPUs (--tp) or larger ones."
        )
    return memory.pool, {
        "hbm_gib": hbm,
        "utilization": utilization,
        "weights_gib_a_gpu": weights / tp,
        "runtime_gib": runtime,
    }


def _workspace(name: str, max_model_len: int) -> int:
    try:
        return _bytes("--workspace", float(name))
    except ValueError as error:
        if isinstance(error, PlanError):
            raise
        return workspace_bytes(name, max_model_len)


def _bytes(option: str, gib: float) -> int:
    if not 0 <= gib < 1 << 20:  # also refuses what is not a number
        raise PlanError(f"{option} {gib}: it must be a number of GiB, 0 or more. Correct it.")
    return int(gib * GIB)


def _show(plan: Capacity, others: dict[str, Capacity]) -> None:
    out = Console(highlight=False)
    table = Table(
        *("cache dtype", "bytes a token", "indexer", "padding", "tokens", "to fp8"),
        title=f"{plan.pool / GIB:.1f} GiB for KV on one GPU, layout {plan.layout}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    base = others["fp8"].tokens

    def row(name: str, one: Capacity) -> None:
        table.add_row(
            name,
            f"{one.bytes_per_token:,.0f}",
            f"{one.indexer_share:.1%}",
            f"{one.block_bytes / one.row.payload - 1:.2%}",
            f"{one.tokens:,}",
            f"{one.tokens / base:.3f}",
        )

    for name, one in others.items():
        row(name, one)
    if plan.workspace:
        row(f"{plan.dtype}, {plan.workspace / GIB:.2f} GiB aside", plan)
    out.print(table)
    out.print(f"{plan.dtype}: {plan.tokens:,} tokens in {plan.blocks:,} blocks")
