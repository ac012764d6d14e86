"""The demo's report for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]


def show(report: dict[str, Any], console: Console) -> None:
    """Print turns, transfers, the summary and the verdicts of a report."""
    turns = Table(
        "agent", "turn", "prompt", "cached", "router", "TTFT s", "ITL ms", "answer", title="Turns, block rows"
    )
    for turn in report["turns"]:
        calls = ", ".join(call["name"] for call in turn["tool_calls"])
        rate = turn["router_hit_rate"]
        turns.add_row(
            str(turn["session"]),
            str(turn["turn"]),
            str(turn["prompt_tokens"]),
            str(turn["cached_tokens"]),
            "" if rate is None else f"{rate:.0%}",
            f"{turn['ttft_s']:.2f}",
            f"{turn['itl_p50_s'] * 1e3:.0f}",
            calls or f"text, {turn['completion_tokens']} tokens",
        )
    console.print(turns)
    moved = Table("layout", "transfers", "blocks", "runs", "regions", "descriptors", "MB", title="KV transfers")
    for run in (report, report["baseline"]):
        rows = run["transfers"]
        moved.add_row(
            run["layout"],
            str(len(rows)),
            *(str(sum(one[key] for one in rows)) for key in ("blocks", "runs")),
            "/".join(sorted({str(one["regions"]) for one in rows})),
            str(sum(one["descriptors"] for one in rows)),
            f"{sum(one['bytes'] for one in rows) / 1e6:.1f}",
        )
    console.print(moved)
    console.print(_cache(report["kv_cache"]))
    if report["tier"]:
        console.print(_tier(report["tier"]))
    for line in report["summary"]:
        console.print(line, highlight=False)
    _verdict(console, "outputs equal one aggregated worker's", report["outputs_equal"])
    _verdict(console, "outputs with the default layout equal too", report["baseline"]["outputs_equal"])
    _verdict(
        console, "negative control: decode continued the context that prefill was given", report["negative_control"]
    )
    _verdict(console, "the same control with the default layout", report["baseline"]["negative_control"])
    if report["tier"]:
        _verdict(console, "the DRAM tier gave blocks back after they were evicted", report["tier"]["from_the_tier"])
        _verdict(console, "outputs with them equal those that were computed", report["tier"]["outputs_equal"])
    if report["first_difference"]:
        console.print(f"first difference: {report['first_difference']}", highlight=False, markup=False)


def _cache(cache: dict[str, Any]) -> Table:
    table = Table("dtype", "bytes a token", "to bf16", "moved", title="KV cache, block rows")
    base = cache["planned_bytes_per_token"]["bf16"]
    for dtype, nbytes in cache["planned_bytes_per_token"].items():
        ours = dtype == cache["dtype"] and cache["bytes_per_token"] is not None
        moved = f"{cache['bytes_per_token']:,.0f} by this run" if ours else ""
        table.add_row(dtype, f"{nbytes:,.0f}", f"{nbytes / base:.2f}", moved)
    return table


def _tier(tier: dict[str, Any]) -> Table:
    table = Table("asked", "computed", "GPU cache", "DRAM tier", "TTFT s", title="Prompt tokens by where they were")
    rows = [(one["what"], one, f"{one['ttft_s']:.2f}") for one in tier["asked"]]
    if len(tier["ranks"]) > 1:
        rows += [(f"rank {number}, all prompts", rank, "") for number, rank in sorted(tier["ranks"].items())]
    for what, tokens, ttft in rows:
        table.add_row(what, *(f"{tokens[source]:,}" for source in ("computed", "gpu", "tier")), ttft)
    return table


def _verdict(console: Console, what: str, holds: bool) -> None:
    console.print(f"[{'green' if holds else 'red'}]{'yes' if holds else 'NO '}[/] {what}", highlight=False)
