"""``glm53 doctor``: the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from glm53.deployment import DeploymentError, load
from glm53.doctor import pair as pairs
from glm53.doctor.finding import Diagnosis, script, wrong
from glm53.doctor.host import look
from glm53.doctor.inventory import Inventory
from glm53.doctor.needs import HOST_ROLES, Needs
from glm53.doctor.report import KIND, SCHEMA, diagnose

__all__ = ["doctor"]


class _UsageError(ValueError):
    """What was asked for does not fit together."""


def doctor(
    recipe: Annotated[
        Path | None, typer.Option("--recipe", help="Also check what this recipe needs of the host.", metavar="RECIPE")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option("--role", help=f"The host's role in the recipe: {', '.join(HOST_ROLES)}.", metavar="ROLE"),
    ] = None,
    pair: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--pair", help="Compare two hosts' reports, written with --json.", metavar="A.json B.json"),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the commands that would cure the findings. Nothing is run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
) -> None:
    """Say what is wrong with this host before anything is launched on it.

    Looks at metadata, files and devices only: nothing of vLLM, Dynamo or torch is imported, and nothing is changed.
    Run it with the interpreter and the environment variables of the worker.

    Exit code 0: nothing is wrong, though there may be notes; 1: there are findings; 2: a recipe or report cannot be
    read, or the options do not fit together.

    \b
    What is installed here, and what each plugin would do:
      glm53 doctor
    May this host prefill for a recipe?
      glm53 doctor --recipe recipes/glm53-b200.yaml --role prefill
    Commands for a look, and for a shell:
      glm53 doctor --fix
    Do a prefill and a decode host agree? On each, then anywhere:
      glm53 doctor --recipe R.yaml --role prefill --json > p.json
      glm53 doctor --recipe R.yaml --role decode --json > d.json
      glm53 doctor --pair p.json d.json
    """
    try:
        if pair is not None:
            _compared(pair, fix, as_json, recipe is not None or role is not None)
        needs = _needs(recipe, role)
    except (_UsageError, pairs.ReportError, DeploymentError) as error:
        print(f"glm53 doctor: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    report = diagnose(Inventory.read(), os.environ, look(), needs)
    if as_json:
        _json(report.as_dict())
    elif fix:
        sys.stdout.write(script(report.findings))
    else:
        _say([*report.text(), ""])
        _findings(report.findings)
    raise typer.Exit(int(wrong(report.findings)))


def _needs(recipe: Path | None, role: str | None) -> Needs | None:
    if recipe is None:
        if role is not None:
            raise _UsageError(f"--role {role} needs a recipe, which says what the role does. Add --recipe RECIPE.")
        return None
    deployment = load(recipe)
    served = [name for name, _, _ in deployment.served()]
    roles = [name for name in HOST_ROLES if name in served or name == "frontend"]
    chosen = next((name for name in roles if name == role), None)
    if chosen is None:
        given = f"--role {role}" if role else "--recipe without --role"
        raise _UsageError(f"{given}: hosts of {recipe} are {', '.join(roles)}. Add --role with one of them.")
    return Needs(deployment, chosen)


def _compared(pair: tuple[Path, Path], fix: bool, as_json: bool, more: bool) -> None:
    if more:
        raise _UsageError("--pair reads two reports, which say their recipe and role. Leave --recipe and --role out.")
    a, b = map(pairs.read, pair)
    found = pairs.compare(a, b)
    if as_json:
        reports = [str(path) for path in pair]
        _json({"kind": f"{KIND}-pair", "schema": SCHEMA, "reports": reports, "findings": [*map(asdict, found)]})
    elif fix:
        sys.stdout.write(script(found))
    else:
        _findings(found)
    raise typer.Exit(int(wrong(found)))


def _findings(findings: Iterable[Diagnosis]) -> None:
    found = list(findings)
    _say(str(finding) for finding in found)
    if not wrong(found):
        _say(["nothing is wrong" + (f" ({len(found)} notes)" if found else "")])


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
