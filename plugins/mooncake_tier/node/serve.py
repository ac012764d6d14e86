"""``mooncake-tier serve``: run a node until it is told to end, and leave a note of where it is."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mooncake_tier.errors import NodeFailed
from mooncake_tier.node import binding
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings

__all__ = ["MOST_RESTARTS", "RUN_DIR", "WITHIN_S", "read_state", "serve"]

RUN_DIR = Path("build/mooncake-tier")
_STATE = "node.json"

MOST_RESTARTS = 3
WITHIN_S = 60.0


def serve(settings: NodeSettings, run_dir: Path, open_ports: bool = False, as_json: bool = False) -> int:
    """Start the node, say so on standard output, and keep it running. Returns 0 after an interrupt.

    A process that ends is started again: the other one has memory that takes minutes to register. Raises `NodeFailed`
    if the node does not start, or if processes ended more than `MOST_RESTARTS` times within `WITHIN_S` seconds.
    """
    if (running := read_state(run_dir)) is not None:
        raise NodeFailed(
            f"process {running['pid']} already serves in {run_dir}: two would share logs and state. End it (kill "
            f"{running['pid']}), or name another --run-dir."
        )
    node = Node(settings, run_dir, open_ports)
    restarts: list[float] = []
    try:
        node.start()
        _say(_note(node), as_json)
        while True:
            time.sleep(0.2)
            for name, said in node.ended().items():
                now = time.monotonic()
                restarts = [*(one for one in restarts if now - one < WITHIN_S), now]
                if len(restarts) > MOST_RESTARTS:
                    raise NodeFailed(f"{said}\nIt is the {len(restarts)}th end within {WITHIN_S:.0f} s: given up.")
                print(f"mooncake-tier: {said}\nmooncake-tier: starting it again", file=sys.stderr, flush=True)
                node.restart(name)
                _note(node)
    except KeyboardInterrupt:
        return 0
    finally:
        (run_dir / _STATE).unlink(missing_ok=True)
        node.stop()


def read_state(run_dir: Path) -> dict[str, Any] | None:
    """What a node that serves in this folder has noted; None if none does."""
    try:
        state: dict[str, Any] = json.loads((run_dir / _STATE).read_text(encoding="utf-8"))
        os.kill(state["pid"], 0)
    except (OSError, ValueError, KeyError):
        return None
    return state


def _note(node: Node) -> dict[str, Any]:
    """Write where the node is, and return it."""
    settings = node.settings
    state = {
        "pid": os.getpid(),
        "host": settings.address,
        "master": settings.store.master,
        "metrics": None if settings.master else f"{settings.address}:{settings.metrics_port}",
        "protocol": settings.protocol,
        "pool_bytes": settings.pool_bytes,
        "lease_s": settings.lease_s,
        "processes": {name: process.pid for name, process in node.processes.items()},
        "environment": binding.environment(node.preload, settings.address) if node.preload else {},
    }
    part = node.logs / f"{_STATE}.part"
    part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    part.replace(node.logs / _STATE)
    return state


def _say(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(state), flush=True)
        return
    print(f"ready: master {state['master']}, pool of {state['pool_bytes'] / (1 << 30):.4g} GiB", flush=True)
    if state["environment"]:
        line = " ".join(f"{name}='{value}'" for name, value in state["environment"].items())
        print(f"start workers with: {line}", flush=True)
    sys.stdout.flush()
