"""``glm53 tuned``: one command from a fine-tuned model's folder to its deployment on reserved capacity."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from glm53.deployment import Deployment, DeploymentError, Finding, Target, load, parse
from glm53.deployment.reading import read_yaml
from glm53.lint.files import check
from glm53.model import ModelError
from glm53.output.folder import FolderError, write
from glm53.recipe import rendered
from glm53.render.kubernetes.pods import MOUNT
from glm53.tuned.folder import Tuned, read

__all__ = ["tuned"]

_err = Console(stderr=True)
_RECIPE = "recipe.yaml"


def tuned(
    folder: Annotated[Path, typer.Argument(help="A checkpoint, or a LoRA adapter as peft saves it.", metavar="FOLDER")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for recipe, manifests and scripts.", metavar="DIR")],
    name: Annotated[
        str | None, typer.Option(help="Name in the API, and of the folder in the volume.", show_default="the folder's")
    ] = None,
    base: Annotated[Path, typer.Option(help="The recipe that everything else is taken from.", metavar="RECIPE")] = Path(
        "recipes/glm53-fine-tuned.yaml"
    ),
    repository: Annotated[
        str, typer.Option(help="Base model of an adapter, on the hub.", metavar="OWNER/NAME")
    ] = "nvidia/GLM-5.3-NVFP4",
    to: Annotated[str, typer.Option("--to", help="kubernetes or slurm.", metavar="TARGET")] = "kubernetes",
    pins: Annotated[Path | None, typer.Option(help="As for `glm53 render`.", metavar="FILE")] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            help="Also copy the folder and launch, in this namespace, or for Slurm in any.", metavar="NAMESPACE"
        ),
    ] = None,
) -> None:
    """Serve a fine-tuned GLM-5.3 on reserved capacity.

    Reads the folder, makes a recipe of it, checks that, and writes DIR with the recipe and what it renders to. With
    --launch pins are looked up, the folder is copied into the cluster's volume, once, and the deployment is launched.

    Exit code 0: written, and launched; 1: there are findings, or a step failed; 2: the folder or an option cannot be
    used.
    """
    target: Target | None = {"kubernetes": "kubernetes", "slurm": "slurm"}.get(to)  # type: ignore[assignment]
    served = name or folder.resolve().name.lower()
    if target is None or not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", served):
        _say(f"glm53: --to {to}, --name {served}: a target is kubernetes or slurm, a name is of a-z, 0-9 and . _ -")
        raise typer.Exit(2)
    try:
        found = read(folder.resolve(), served, repository, MOUNT)
        recipe = _recipe(read_yaml(base), found, served, target)
        deployment = _written(recipe, target, out, pins)
    except (ModelError, FolderError, OSError) as error:
        _say(f"glm53: {error}")
        raise typer.Exit(2) from error
    except DeploymentError as error:
        _say(f"glm53: {error}")
        raise typer.Exit(1) from error
    for note in found.notes:
        _say(note)
    space = [launch or "NAMESPACE"] if target == "kubernetes" else []
    copying = [out / "upload.sh", *space, folder.resolve(), found.place]
    starting = [out / ("launch.sh" if target == "kubernetes" else "submit.sh"), *space]
    if launch is None:
        _say(f"{served} from {base}, checked. Next, or by this command with --launch: copy it, and launch:")
        _say(shlex.join(map(str, copying)))
        _say(shlex.join(map(str, starting)))
        return
    if pins is None and deployment.unpinned() and os.environ.get("ALLOW_UNPINNED") != "1":
        pins = out / "pins.yaml"
        pins.write_text(_run([out / "pins.sh"]), encoding="utf-8")
        _written(recipe, target, out, pins)
    _run(copying, show=True)
    _run(starting, show=True)


def _recipe(raw: Any, found: Tuned, served: str, target: Target) -> dict[str, Any]:
    """The base recipe with what the folder says, on reserved capacity, for one target."""
    if not isinstance(raw, dict):
        raise DeploymentError("--base", [Finding("not-a-mapping", "file", "it is no recipe.", "Name a recipe.")])
    data = dict(raw)
    if wrong := [key for key in ("model", "engine", "capacity") if not isinstance(data.get(key) or {}, dict)]:
        fix = "Write it as keys and values."
        raise DeploymentError(
            "--base", [Finding("bad-value", key, f"{data[key]!r} is no section.", fix) for key in wrong]
        )
    model = {key: value for key, value in (data.get("model") or {}).items() if key not in ("repository", "revision")}
    data["model"] = {key: value for key, value in (model | found.overrides["model"]).items() if value is not None}
    if found.adapter and data["model"].get("served_name") == served:
        data["model"]["served_name"] = f"{served}-base"
    data["engine"] = (data.get("engine") or {}) | found.overrides["engine"]
    given = data["engine"].get("max_model_len", found.longest)
    if found.longest and isinstance(given, int):  # anything else is a finding
        data["engine"]["max_model_len"] = min(found.longest, given)
    priority = (data.get("capacity") or {}).get("priority")
    data["capacity"] = {"policy": "reserved"} | ({} if priority is None else {"priority": priority})
    data["targets"] = [target]
    data["name"] = re.sub(r"[^a-z0-9]+", "-", f"glm53-{served}")[:40].strip("-")
    return data


def _written(recipe: dict[str, Any], target: Target, out: Path, pins: Path | None) -> Deployment:
    """Check the recipe and everything it renders to, and write all of it. Raises `DeploymentError` with findings."""
    deployment = parse(recipe, "the recipe of this folder")
    text = yaml.safe_dump(recipe, sort_keys=False)
    if pins is not None:
        out.mkdir(parents=True, exist_ok=True)
        scratch = out / f".{_RECIPE}.new"
        try:
            scratch.write_text(text, encoding="utf-8")
            deployment = load(scratch, pins)
        finally:
            scratch.unlink(missing_ok=True)
    files = rendered(deployment, target, out.resolve())
    if findings := check(files, target):
        raise DeploymentError("the recipe of this folder", findings)
    write(out, files | {_RECIPE: text})
    return deployment


def _run(command: list[Any], *, show: bool = False) -> str:
    """Run a rendered script; its standard output, shown or returned. Ends this command where it fails."""
    done = subprocess.run(
        [str(word) for word in command], stdout=None if show else subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        _say(f"glm53: {command[0]} ended with {done.returncode}; what it said is above. Run the same command again.")
        raise typer.Exit(1)
    return done.stdout or ""


def _say(message: str) -> None:
    _err.print(message, highlight=False, markup=False, soft_wrap=True)
