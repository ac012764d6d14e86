"""``glm53 edge``: check, render, run and drain the one address in front of several deployments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glm53.deployment import DeploymentError
from glm53.edge.keys import envoy_keys
from glm53.edge.kubernetes import render_kubernetes
from glm53.edge.model import Edge, load_edge
from glm53.edge.running import drained, local_files, replace_file, run, update
from glm53.output.folder import FolderError, write

__all__ = ["app"]

app = typer.Typer(
    name="edge",
    help="One address in front of several deployments: failover, sessions, keys, limits, TLS.",
    no_args_is_help=True,
    add_completion=False,
)
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

EdgeFile = Annotated[Path, typer.Argument(help="The edge, a YAML file.", metavar="EDGE")]
RunDir = Annotated[Path, typer.Option(help="Folder with the files that the running edge watches.", metavar="DIR")]
_RUN_DIR = Path("build/edge")


@app.command()
def lint(
    edge: EdgeFile, as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False
) -> None:
    """Check an edge file. Exit code 0: nothing is wrong; 1: there are findings."""
    try:
        load_edge(edge)
        findings = []
    except DeploymentError as error:
        findings = error.findings
    if as_json:
        rows = [{"code": one.code, "field": one.field, "message": one.message, "fix": one.fix} for one in findings]
        print(json.dumps({"edge": str(edge), "findings": rows}, indent=1))
    else:
        for finding in findings:
            _err.print(str(finding))
        if not findings:
            _err.print(f"{edge}: nothing is wrong")
    raise typer.Exit(1 if findings else 0)


@app.command()
def render(
    edge: EdgeFile,
    to: Annotated[str, typer.Option("--to", help="local or kubernetes.", metavar="TARGET")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the files.", metavar="DIR")],
) -> None:
    """Write Envoy's configuration, or the manifests with it.

    Exit code 2: the edge file is wrong, or another file is in the way.
    """
    if to not in ("local", "kubernetes"):
        raise typer.BadParameter(f"--to {to}: choose local or kubernetes.")
    chosen = _read(edge)
    try:
        files = local_files(chosen, out) if to == "local" else render_kubernetes(chosen)
        for name in write(out, files):
            print(out / name)
    except (DeploymentError, FolderError) as error:
        _fail(error)


@app.command("run")
def run_here(edge: EdgeFile, run_dir: RunDir = _RUN_DIR) -> None:
    """Run the edge on this machine, in the foreground; Ctrl-C ends it."""
    chosen = _read(edge)
    scheme = "https" if chosen.tls else "http"
    _err.print(f"{chosen.name}: {scheme}://{chosen.listen}:{chosen.port}/v1 in front of {', '.join(_names(chosen))}")
    try:
        run(chosen, run_dir)
    except DeploymentError as error:
        _fail(error)


@app.command()
def drain(
    edge: EdgeFile,
    member: Annotated[str, typer.Argument(help="Name of the member.", metavar="MEMBER")],
    run_dir: RunDir = _RUN_DIR,
    undo: Annotated[bool, typer.Option("--undo", help="Give it requests again.")] = False,
) -> None:
    """Give a member no new requests, so that it can be changed or ended once it has finished those it has."""
    chosen = _read(edge)
    try:
        update(chosen, run_dir, drained(run_dir) - {member} if undo else drained(run_dir) | {member})
    except DeploymentError as error:
        _fail(error)
    _err.print(f"{member} gets {'requests again' if undo else 'no new requests; those it has go on'}")


@app.command()
def keys(
    source: Annotated[Path, typer.Argument(help="Lines CLIENT KEY; - for standard input.", metavar="KEYS")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file for the edge.", metavar="FILE")] = Path(
        "keys.yaml"
    ),
) -> None:
    """Turn a list of clients and their keys into the file that the edge reads; a running edge takes it at once."""
    try:
        text = sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
        replace_file(out, envoy_keys(text), 0o600)
    except (DeploymentError, OSError) as error:
        _fail(error)


def _names(edge: Edge) -> list[str]:
    return [member.name for member in edge.members]


def _read(path: Path) -> Edge:
    try:
        return load_edge(path)
    except DeploymentError as error:
        _fail(error)
        raise


def _fail(error: Exception) -> None:
    _err.print(f"glm53: {error}")
    raise typer.Exit(2)
