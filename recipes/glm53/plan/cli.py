"""The ``glm53 plan`` commands."""

from __future__ import annotations

import typer

from glm53.plan.blhnc import blhnc
from glm53.plan.kv import kv
from glm53.plan.tier import tier
from glm53.plan.traffic import traffic

__all__ = ["app"]

app = typer.Typer(
    name="plan",
    help="Compute what a deployment will cost from the model's config.json: no GPU and no vLLM needed.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Keeps `plan` a group of commands however many it has."""


app.command()(blhnc)
app.command()(kv)
app.command()(tier)
app.command()(traffic)
