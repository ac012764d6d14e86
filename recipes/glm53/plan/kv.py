"""``glm53 plan kv``: tokens of KV that one GPU holds, by cache dtype."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glm53.plan.capacity import GIB, WORKSPACES, Capacity, Memory, plan_capacity, workspace_bytes
from glm53.plan.config import read_config
from glm53.plan.options import TABLE, Dtype, Model, cache_dtype, errors_in_one_line, gib_bytes, release_line
from vllm_blhnc.plan import BLOCK_SIZE, RELEASES, Caches, PlanError

__all__ = ["kv"]

#: What every plan is compared with, where the model can have it.
_COMPARED = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")


def kv(
    model: Model,
    hbm_gib: Annotated[float | None, typer.Option(help="Memory of one GPU in GiB.")] = None,
    weights_gib: Annotated[float | None, typer.Option(help="Weights of the whole model in GiB.")] = None,
    tp: Annotated[int, typer.Option(min=1, max=1 << 20, help="GPUs that share the weights.")] = 1,
    dtype: Dtype = "nvfp4_ds_mla",
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
    max_model_len: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="vLLM's --max-model-len; sizes the workspace.")
    ] = 1 << 20,
    layout: Annotated[str, typer.Option(help="BLHNC pads block rows; LBNHC does not, from vLLM 0.32 on.")] = "BLHNC",
    block_size: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="vLLM's --block-size: 64, with LBNHC also multiples of it.")
    ] = BLOCK_SIZE,
    vllm: Annotated[
        str, typer.Option(help="vLLM release: " + ", ".join(RELEASES) + ", or a full version of these.")
    ] = RELEASES[-1],
    mtp: Annotated[
        int | None,
        typer.Option(help="Multi-token-prediction layers that are served.", show_default="all that the model has"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Plan how many tokens of KV one GPU holds, and what each cache dtype would hold.

    The memory for KV is what vLLM may use of the GPU (--hbm-gib x --utilization) without
    weights and runtime, or --pool-gib, vLLM's own "Available KV cache memory". It is
    divided into blocks as vLLM's planner does, so tokens are what vLLM logs as
    "GPU KV cache size".

    An MLA cache is whole on every tensor-parallel rank: a group of GPUs holds what one
    of them holds, so --tp only spreads the weights.

    A workspace is memory that is set aside before the cache is sized. It is charged to
    the planned dtype; the other rows of the table are without one.

    Example: glm53 plan kv --model config.json --hbm-gib 180 --weights-gib 400 --tp 4
    """
    with errors_in_one_line():
        caches = Caches.of(read_config(model), mtp)
        pool, terms = _pool(hbm_gib, weights_gib, tp, utilization, runtime_gib, pool_gib)
        aside = _workspace(workspace, max_model_len)
        options: dict[str, Any] = {"pool": pool, "layout": layout, "block_size": block_size}
        options["release"] = release_line(vllm)
        plan = plan_capacity(caches, dtype=cache_dtype(dtype), workspace=aside, **options)
        compared = [name for name in _COMPARED if name in caches.dtypes]
        others = {name: plan_capacity(caches, dtype=name, workspace=0, **options) for name in compared}
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
        "block_size": plan.block_size,
        "block_bytes": plan.block_bytes,
        "block_padding": plan.block_bytes - plan.row.payload * (plan.block_size // BLOCK_SIZE),
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
        return gib_bytes("--pool-gib", pool), {"pool_gib": pool}
    if hbm is None or weights is None:
        raise PlanError("the memory for KV is not known. Give --hbm-gib and --weights-gib, or --pool-gib.")
    if not 0 < utilization <= 1:
        raise PlanError(f"--utilization {utilization}: it is a fraction of the GPU's memory. Give 0.92, for example.")
    memory = Memory(
        gib_bytes("--hbm-gib", hbm),
        utilization,
        gib_bytes("--weights-gib", weights),
        tp,
        gib_bytes("--runtime-gib", runtime),
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
        return gib_bytes("--workspace", float(name))
    except ValueError as error:
        if isinstance(error, PlanError):
            raise
        return workspace_bytes(name, max_model_len)


def _show(plan: Capacity, others: dict[str, Capacity]) -> None:
    out = Console(highlight=False)
    table = Table(
        *("cache dtype", "bytes a token", "indexer", "padding", "tokens", "to fp8"),
        title=f"{plan.pool / GIB:.1f} GiB for KV on one GPU, layout {plan.layout}",
        **TABLE,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    base = others["fp8"].tokens

    def row(name: str, one: Capacity) -> None:
        table.add_row(
            name,
            f"{one.bytes_per_token:,.0f}",
            f"{one.indexer_share:.1%}",
            f"{one.padding:.2%}",
            f"{one.tokens:,}",
            f"{one.tokens / base:.3f}",
        )

    for name, one in others.items():
        row(name, one)
    name = plan.dtype
    if plan.workspace:
        row(f"{name} - {plan.workspace / GIB:.2f} GiB", plan)
        name = f"{name}, {plan.workspace / GIB:.2f} GiB aside"
    out.print(table)
    out.print(f"{name}: {plan.tokens:,} tokens in {plan.blocks:,} blocks")
