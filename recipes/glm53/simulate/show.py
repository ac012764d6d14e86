"""The simulation's result as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from glm53.plan.options import TABLE
from glm53.simulate.compare import COMPARISONS

__all__ = ["show"]


def show(data: dict[str, Any], out: Console) -> None:
    """Print what `command.simulate` reports as JSON."""
    speeds = data["speeds"]
    out.print(f"{data['recipe']}: Dynamo {data['dynamo']}'s mocker workers, KV router and replay, virtual time")
    for key, unit in (("prefill", "tokens/s a prefill group"), ("decode_ms", "ms between a user's tokens")):
        out.print(f"{speeds[key]:,.4g} {unit}: {speeds[key + '_source']}")
    out.print(f"At best {data['best_hit_rate']:.1%} of the measured turns' prompt tokens are hits")
    for name, title in COMPARISONS.items():
        if some := [row for row in data["rows"] if row["comparison"] == name]:
            out.print(_table(f"{name}: {title}", some))
    if data["checks"]:
        out.print(_checks(data["checks"]))
    out.print("Not simulated:")
    for figure, why in data["not_simulated"].items():
        out.print(f"  {figure}: {why}")
    for note in data["notes"]:
        out.print(note)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(
        *("", "hit", "DRAM", "wait p50", "p90", "TTFT p50", "p90", "tok/s", "a GPU", "decode wait"),
        title=title,
        **TABLE,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["label"],
            f"{row['hit_rate']:.1%}",
            f"{row['from_dram']:.1%}",
            *(f"{row[key]:,.0f}" for key in ("wait_p50", "wait_p90", "ttft_p50", "ttft_p90", "output_rate")),
            f"{row['output_per_gpu']:,.1f}",
            f"{row['decode_wait_p90']:,.0f}",
        )
    return table


def _checks(checks: list[dict[str, Any]]) -> Table:
    table = Table("published figure", "published", "simulated", "verdict", "why", title="Beside the published", **TABLE)
    for one in checks:
        numbers = (f"{one['published']:.3g}", f"{one['simulated']:.3g}")
        table.add_row(one["figure"], *numbers, one["verdict"], one["why"])
    return table
