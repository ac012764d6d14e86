"""``glm53 lint`` and ``glm53 render``: a recipe checked, and turned into what a place runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from glm53.deployment import Deployment, DeploymentError, Finding, Target, load
from glm53.lint.files import check
from glm53.output.folder import FolderError, write
from glm53.render import kubernetes, local, slurm

__all__ = ["lint", "render"]

_err = Console(stderr=True)

#: What makes a file unreadable rather than wrong.
_UNREADABLE = {"unreadable", "not-yaml", "not-a-mapping"}

Recipe = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", metavar="RECIPE")]
Pins = Annotated[
    Path | None,
    typer.Option("--pins", help="Digests and revision, as the rendered pins.sh prints them.", metavar="FILE"),
]
Pinned = Annotated[
    bool, typer.Option("--pinned", help="Take every image and revision that is not pinned for a finding.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")]


def lint(recipe: Recipe, pins: Pins = None, pinned: Pinned = False, as_json: AsJson = False) -> None:
    """Check a recipe, and what it renders to, without anything of vLLM or Dynamo installed.

    Exit code 0: nothing is wrong; 1: there are findings; 2: the file cannot be read.
    """
    findings, deployment, unreadable = _checked(recipe, pins, pinned)
    unpinned = deployment.unpinned() if deployment and deployment.hardware != "cpu" else []
    if as_json:
        targets = list(deployment.targets) if deployment else []
        _print({"recipe": str(recipe), "targets": targets, "findings": _data(findings), "unpinned": unpinned})
    else:
        for finding in findings:
            _say(str(finding))
        if deployment and not findings:
            _say(f"{recipe}: nothing is wrong ({', '.join(deployment.targets)})")
            if unpinned:
                _say(f"not pinned: {', '.join(unpinned)}; the rendered pins.sh looks them up")
    raise typer.Exit(2 if unreadable else 1 if findings else 0)


def render(
    recipe: Recipe,
    to: Annotated[str, typer.Option("--to", help="local, kubernetes or slurm.", metavar="TARGET")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the files.", metavar="DIR")],
    pins: Pins = None,
    pinned: Pinned = False,
    as_json: AsJson = False,
) -> None:
    """Write what one kind of place runs, checked before it is written.

    Files that an earlier call wrote are replaced; anything else in the way is refused. Exit code 0: written; 1: there
    are findings, or a file is in the way; 2: the recipe cannot be read, or does not name this target.
    """
    findings, deployment, unreadable = _checked(recipe, pins, pinned)
    if deployment is None or findings:
        _refuse(recipe, findings, as_json)
        raise typer.Exit(2 if unreadable else 1)
    target = next((one for one in deployment.targets if one == to), None)
    if target is None:
        why = f"{recipe} names the targets {', '.join(deployment.targets)}."
        _say(f"glm53: --to {to}: {why} Choose one of them.")
        if as_json:
            _print_refusal(recipe, [Finding("target", "--to", f"{to}: {why}", "Choose one of them.")])
        raise typer.Exit(2)
    files = rendered(deployment, target, out.resolve())
    try:
        changed = write(out, files)
    except (FolderError, OSError) as error:
        _say(f"glm53: {error}")
        if as_json:
            fix = "Choose a folder with -o that can be written, and holds no file of others."
            _print_refusal(recipe, [Finding("folder", "-o", str(error), fix)])
        raise typer.Exit(1) from error
    unpinned = deployment.unpinned() if target != "local" else []
    if as_json:
        result = {"recipe": str(recipe), "target": target, "folder": str(out), "files": sorted(files)}
        _print(result | {"changed": changed, "unpinned": unpinned, "findings": []})
    else:
        _say(f"{len(files)} files in {out}, {len(changed)} of them new or changed")
        if unpinned:
            _say(f"not pinned: {', '.join(unpinned)}. Before launching: pins.sh > pins.yaml, and render with --pins")


def rendered(deployment: Deployment, target: Target, folder: Path) -> dict[str, str]:
    """Path -> text of one target's files. folder: absolute; local processes write into it."""
    renderers: dict[Target, Callable[[], dict[str, str]]] = {
        "local": lambda: local.files(deployment, folder / "run"),
        "kubernetes": lambda: kubernetes.render(deployment),
        "slurm": lambda: slurm.render(deployment),
    }
    return renderers[target]()


def _checked(recipe: Path, pins: Path | None, pinned: bool) -> tuple[list[Finding], Deployment | None, bool]:
    """Findings of the recipe and of everything it renders to, the deployment, and whether the file was unreadable."""
    try:
        deployment = load(recipe, pins)
    except DeploymentError as error:
        return error.findings, None, any(finding.code in _UNREADABLE for finding in error.findings)
    found: list[Finding] = []
    for target in deployment.targets:
        found += check(rendered(deployment, target, Path("/rendered")), target)
    if pinned and deployment.targets != ("local",):
        found += [_unpinned(key) for key in deployment.unpinned()]
    return found, deployment, False


def _unpinned(key: str) -> Finding:
    return Finding(
        "unpinned",
        key,
        "what it stands for may change under a running deployment.",
        "Run the rendered pins.sh > pins.yaml, and give --pins pins.yaml.",
    )


def _refuse(recipe: Path, findings: list[Finding], as_json: bool) -> None:
    if as_json:
        _print_refusal(recipe, findings)
    else:
        _say(f"glm53: {DeploymentError(str(recipe), findings)}")


def _print_refusal(recipe: Path, findings: list[Finding]) -> None:
    _print({"recipe": str(recipe), "files": [], "findings": _data(findings)})


def _data(findings: list[Finding]) -> list[dict[str, str]]:
    return [vars(finding) for finding in findings]


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _say(message: str) -> None:
    _err.print(message, highlight=False, markup=False, soft_wrap=True)
