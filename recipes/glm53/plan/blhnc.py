"""``glm53 plan blhnc``: rows, regions and descriptors of a prompt's KV transfer."""

from __future__ import annotations

import json
import re
import reprlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glm53.plan.config import read_config
from glm53.plan.options import TABLE, Dtype, Model, cache_dtype, errors_in_one_line, release_line
from vllm_blhnc.plan import BACKENDS, BLOCK_SIZE, RELEASES, Caches, Layout, PlanError, Transfer, plan_transfer

__all__ = ["blhnc", "figures"]


def blhnc(
    model: Model,
    tokens: Annotated[int, typer.Option(help="Tokens of the prompt whose KV moves.", show_default=False)],
    run_length: Annotated[
        str, typer.Option(help="Blocks in a run of consecutive ids, or `all` for one run.", metavar="BLOCKS")
    ] = "10",
    block_size: Annotated[int, typer.Option(help="Tokens of a block, vLLM's --block-size.")] = BLOCK_SIZE,
    dtype: Dtype = "fp8",
    attention_backend: Annotated[
        str | None,
        typer.Option(
            help="vLLM's sparse MLA backend: " + ", ".join(BACKENDS) + ".",
            show_default="what SM100 takes for the dtype",
        ),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            help="One vLLM release: " + ", ".join(RELEASES) + ", or a full version of these.",
            show_default="all, the last in --json",
        ),
    ] = None,
    mtp: Annotated[
        int | None,
        typer.Option(help="Multi-token-prediction layers that are served.", show_default="all that the model has"),
    ] = None,
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="The same as --mtp 0.")] = False,
    row_alignment: Annotated[
        int | None,
        typer.Option(help="The plugin's row_alignment_tokens, and what it costs.", show_default="as vLLM aligns"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Plan the NIXL transfer of a prompt's KV between prefill and decode.

    A block is one page of every cache. vLLM's default layout, LBNHC, keeps each cache
    by itself, and a run of consecutive blocks travels as one descriptor a cache. BLHNC
    keeps the pages of a block side by side, as one row, and a run of rows travels as
    one descriptor. Rows are padded to what the attention kernels need.

    Before 0.33, vLLM's own pull connector registers every page of a row by itself, and
    NIXL merges none of them: there BLHNC needs the plugin vllm_blhnc.

    The blocks of a prompt in an empty cache are one run. Where blocks were freed and
    reused, about 10 blocks a run have been published.

    Example: glm53 plan blhnc --model config.json --tokens 200000 --run-length 10
    """
    with errors_in_one_line():
        if no_mtp and mtp:
            raise PlanError(f"--no-mtp and --mtp {mtp} contradict each other. Give one of them.")
        caches = Caches.of(read_config(model), 0 if no_mtp else mtp)
        plans = [
            plan_transfer(
                caches,
                tokens=tokens,
                run_length=_blocks(run_length),
                release=release,
                dtype=cache_dtype(dtype),
                backend=attention_backend,
                block_size=block_size,
                row_alignment=row_alignment,
            )
            for release in (RELEASES if vllm is None else [release_line(vllm)])
        ]
        if as_json:
            print(json.dumps({"model": str(model)} | figures(plans), indent=1))
        else:
            _show(plans)


def figures(plans: list[Transfer]) -> dict[str, Any]:
    """The plans as data: those of the last release at the top, and each release under ``releases``."""
    last = plans[-1]
    return {
        "caches": last.caches.count,
        "mla_caches": last.caches.mla,
        "indexer_caches": last.caches.indexers,
        "mtp_layers": last.caches.mtp,
        "dtype": last.dtype,
        "attention_backend": last.backend,
        "block_size": BLOCK_SIZE,
        "tokens": last.tokens,
        "blocks": last.blocks,
        "run_length": last.run_length or "all",
        "runs": last.runs,
        "vllm": last.release,
        **_of_release(last),
        "releases": {plan.release: _of_release(plan) for plan in plans},
    }


def _of_release(plan: Transfer) -> dict[str, Any]:
    more = plan.row.nbytes - plan.stock_row.nbytes
    return {
        "row_bytes": plan.row.payload,
        "row_stride": plan.row.nbytes,
        "row_padding": plan.row.padding,
        "alignment_bytes": plan.row.alignment,
        "alignment_tokens": plan.align_rows,
        "kernel_page_tokens": plan.kernel_page_rows,
        "bytes_per_token": plan.row.nbytes / BLOCK_SIZE,
        "row_alignment": plan.row_alignment
        and {
            "tokens": plan.row_alignment,
            "row_stride_without": plan.stock_row.nbytes,
            "extra_bytes": more,
            "extra_percent": 100 * more / plan.stock_row.nbytes,
        },
        "layouts": {
            "LBNHC": _of_layout(plan.lbnhc),
            "BLHNC": _of_layout(plan.blhnc),
            "BLHNC_stock": _of_layout(plan.blhnc_stock),
        },
    }


def _of_layout(layout: Layout) -> dict[str, Any]:
    return {
        "registered_by": layout.who,
        "regions": layout.regions,
        "mergeable": layout.dense,
        "descriptors": layout.descriptors,
        "descriptors_raw": layout.descriptors_raw,
        "descriptors_contiguous": layout.descriptors_contiguous,
        "bytes": layout.nbytes,
        "overhead_percent": 100 * layout.overhead,
    }


def _blocks(run_length: str) -> int | None:
    if run_length == "all":
        return None
    if not re.fullmatch("[1-9][0-9]{,8}", run_length):
        raise PlanError(
            f"--run-length {reprlib.repr(run_length)}: a run has whole blocks. It must be a number from 1 to "
            "999,999,999, or `all` for one run. Give --run-length 10 for a fragmented cache."
        )
    return int(run_length)


def _show(plans: list[Transfer]) -> None:
    out = Console(highlight=False)
    last = plans[-1]
    caches = last.caches
    mtp = f"{caches.mtp} MTP layer{'s' * (caches.mtp != 1)} included" if caches.mtp else "no MTP layer"
    out.print(f"{caches.count} caches a block: {caches.mla} MLA and {caches.indexers} indexer, {mtp}")
    rows = Table(
        *("vLLM", "KV", "padding", "stride", "aligned to", "kernel page"),
        title=f"Block rows in bytes: {last.dtype}, {last.backend}",
        **TABLE,
    )
    for plan in plans:
        page = f"{plan.kernel_page_rows} tokens" if plan.kernel_page_rows else "-"
        aligned = f"{plan.align_rows} token{'s' * (plan.align_rows != 1)}"
        numbers = (plan.row.payload, plan.row.padding, plan.row.nbytes)
        rows.add_row(plan.release, *(f"{number:,}" for number in numbers), aligned, page)
    out.print(rows)
    planned = [] if last.run_length is None else [f"runs of {last.run_length}"]
    costs = Table(
        *("vLLM", "layout", "regions", *planned, "all apart", "one run", "GB", "padding"),
        title=f"Descriptors of {last.tokens:,} tokens in {last.blocks:,} blocks",
        **TABLE,
    )
    for column in costs.columns[2:]:
        column.justify = "right"
        column.overflow = "fold"
    for plan in plans:
        for layout in (plan.lbnhc, plan.blhnc_stock, plan.blhnc):
            counts = [layout.descriptors] if planned else []
            counts += [layout.descriptors_raw, layout.descriptors_contiguous]
            costs.add_row(
                *(plan.release, f"{layout.layout} {layout.who}"),
                *(f"{count:,}" for count in (layout.regions, *counts)),
                *(f"{layout.nbytes / 1e9:.2f}", f"{100 * layout.overhead:.3f} %"),
            )
        costs.add_section()
    out.print(costs)
    for line in _conclusion(plans):
        out.print(line)


def _conclusion(plans: list[Transfer]) -> list[str]:
    last = plans[-1]
    fewer = last.lbnhc.descriptors / last.blhnc.descriptors
    lines = []
    if last.dtype == "bf16":
        lines.append(
            "With bf16 vLLM takes FLASHINFER_MLA_SPARSE for up to 16 attention heads a rank and FLASHMLA_SPARSE for "
            "more: choose it with --attention-backend."
        )
    lines.append(
        f"On {last.release}, descriptors are {last.blhnc.descriptors:,} with block rows and {last.lbnhc.descriptors:,} "
        f"without: {fewer:,.0f} times fewer for {100 * last.blhnc.overhead:.3f} % more bytes."
    )
    if worse := [plan for plan in plans if not plan.blhnc_stock.dense]:
        names = " and ".join(plan.release for plan in worse)
        lines.append(
            f"On {names} rows need the plugin: with BLHNC and stock's pull connector alone they are "
            f"{worse[0].blhnc_stock.descriptors:,}."
        )
    for plan in plans:
        if plan.row_alignment:
            more = plan.row.nbytes - plan.stock_row.nbytes
            lines.append(
                f"--row-alignment {plan.row_alignment} on {plan.release}: {more:,} bytes "
                f"({100 * more / plan.stock_row.nbytes:.3f} %) more memory and traffic a block than vLLM's own "
                f"{plan.stock_row.nbytes:,}."
            )
    return lines
