"""Replacing the workers of one role while the deployment serves: for each a new one first, then the old one ends."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import httpx

from glm53.deployment import Deployment, RoleName
from glm53.local.processes import Started, end, free_port_runs, start, tail
from glm53.local.stack import Progress, StackError, State
from glm53.render.local import LOOPBACK, Ports, worker, worker_ports

__all__ = ["roll"]


def roll(
    deployment: Deployment,
    role: RoleName,
    run_dir: Path,
    progress: Progress,
    timeout_s: float = 600.0,
    *,
    python: str = sys.executable,
) -> dict[str, str]:
    """Replace each worker of `role` in the stack of `run_dir` by one as `deployment` has it; returns old -> new names.

    An old worker leaves the router's list first, and ends once it has finished what it has, or after `timeout_s`. The
    other roles go on as they are, so nothing may change on which roles must agree. Raises StackError; workers that were
    not replaced yet then go on.
    """
    run_dir = run_dir.resolve()
    state = _running(run_dir)
    if state.fingerprint != deployment.fingerprint:
        raise StackError(
            f"{deployment.name} has fingerprint {deployment.fingerprint}, and what runs in {run_dir} has "
            f"{state.fingerprint}: something has changed on which all roles must agree, such as the model or the rows "
            "of the cache. Roll only what is one role's own, or use `glm53 down` and `glm53 up`."
        )
    old = [process for process in state.processes if process.name.startswith(f"{role}-")]
    if not old:
        roles = ", ".join(sorted({one.name.rpartition("-")[0] for one in state.processes if "-" in one.name}))
        raise StackError(f"no {role} worker runs in {run_dir}. Roll one of: {roles}.")
    replaced = {}
    for process in old:
        number = 1 + max(int(one.name.rpartition("-")[2]) for one in state.processes if one.name.startswith(f"{role}-"))
        new = _start(deployment, role, number, state, run_dir, python, progress, timeout_s)
        state = dataclasses.replace(state, processes=(*state.processes, new))
        state.write(run_dir)
        progress(f"{state.deployment}: ending {process.name}")
        if killed := end([process], timeout_s):
            progress(f"{state.deployment}: {killed[0]} did not finish in {timeout_s:.0f} s and was killed")
        state = dataclasses.replace(state, processes=tuple(one for one in state.processes if one != process))
        state.write(run_dir)
        replaced[process.name] = new.name
    return replaced


def _running(run_dir: Path) -> State:
    state = State.read(run_dir)
    if state is None or not state.broker:
        raise StackError(f"nothing that can be rolled runs in {run_dir}. Start it with `glm53 up`.")
    return state


def _start(
    deployment: Deployment,
    role: RoleName,
    number: int,
    state: State,
    run_dir: Path,
    python: str,
    progress: Progress,
    timeout_s: float,
) -> Started:
    """A new worker that is ready; one that does not get ready is ended."""
    own = free_port_runs([worker_ports(deployment, role)], LOOPBACK)
    http = int(state.url.rpartition(":")[2])
    process = worker(deployment, role, number, Ports(http, (*state.broker, *own, *state.tier)), run_dir, python)
    log = run_dir / f"{process.name}.log"
    started = start(process.name, process.argv, process.env, log)
    began, ready = time.monotonic(), False
    try:
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while not ready:
                if not started.alive():
                    raise StackError(f"{process.name} died; the end of its log {log}:\n{tail(log)}")
                if time.monotonic() - began > timeout_s:
                    raise StackError(
                        f"{process.name} is not ready after {timeout_s:.0f} s; its log {log}:\n{tail(log)}"
                    )
                time.sleep(0.2)
                try:
                    ready = client.get(str(process.ready_url)).status_code == 200
                except httpx.HTTPError:
                    ready = False
    except BaseException:
        end([started])
        raise
    progress(f"{state.deployment}: {process.name} ready after {time.monotonic() - began:.0f} s")
    return started
