"""Sessions of agents on an engine whose master and pool are killed again and again: what is left behind at the end.

The engine's caches are so small that most turns read the store. At the end every token must be that of an engine
without a tier, nothing may be left in the store once its namespace is flushed, and the engine may hold no more blocks,
threads and file descriptors than before the first kill.

Usage: ``python benchmarks/tier_soak.py [--minutes N] [--way offload|store] [--seed N] [--json]``
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tier_agents
import tier_rig
import tier_windows
from faulty_store import LEASE_S, FaultyStore
from tier_agents import CLOSED, CONNECTED, NOTHING, Soaked, Turn
from tier_rig import Call, engine_process

from mooncake_tier.stock import TCP_LANES

__all__ = ["Report", "reference", "soak"]

#: Caches of GPU and host, in bytes, which hold a third of the sessions.
ENGINE = {"kv_cache_memory_bytes": 16 << 20, "max_model_len": 1024}
HOST_BYTES = 13 << 20


@dataclass
class Report:
    """kills: by process. left: keys in the store after a flush. before, after: what the engine held at rest."""

    soaked: Soaked
    kills: Counter[str]
    before: dict[str, int]
    after: dict[str, int]
    left: int
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """What must not be; empty if all is well."""
        allowed = self.before | {
            CLOSED: self.before[CLOSED] + TCP_LANES * self.kills["pool"],
            CONNECTED: self.before[CONNECTED] + TCP_LANES,
        }
        return [
            *(f"{name}: other tokens" for name in self.soaked.wrong),
            *(f"{name}: {allowed[name]} allowed, {n} held" for name, n in self.after.items() if n > allowed[name]),
            *(f"{name}: {self.after[name]} at rest" for name in NOTHING if self.after.get(name)),
            *([f"{self.left} keys are in the store after a flush"] if self.left else []),
        ]


def reference(call: Call, model: Path, count: int = 6, turns: int = 5) -> list[list[Turn]]:
    """Sessions with the answers of an engine without a tier."""
    call(tier_rig.start, str(model), "none", **ENGINE)
    return list(call(tier_agents.sessions, count, turns))


def soak(
    call: Call,
    begin: Call,
    model: Path,
    store: FaultyStore,
    way: str,
    agents: list[list[Turn]],
    seconds: float,
    seed: int,
) -> Report:
    """Start an engine and let the sessions run, while master and pool are killed at random."""
    section: dict[str, Any] = {"master": store.master, "lease_s": LEASE_S}
    if way == "offload":
        section |= {"session_bytes": 16 << 20, "session_idle_s": 2.0}
    call(tier_rig.start, str(model), way, section, HOST_BYTES, **ENGINE)
    call(tier_agents.run, agents, 1.0, seed)
    namespace = call(tier_windows.namespace)
    for name in ("master", "pool"):  # what is made once, at the first reconnection, is no leak
        with store.killed(name):
            call(tier_agents.run, agents, 1.0, seed)
        call(tier_agents.run, agents, 1.0, seed)
    before, kills, chosen = call(tier_agents.at_rest), Counter[str](), random.Random(seed)
    running = begin(tier_agents.run, agents, seconds, seed)
    while not running.done():
        _wait(running, chosen.uniform(1.0, 4.0))
        name = chosen.choice(["master", "pool"])
        with store.killed(name):
            kills[name] += 1
            _wait(running, chosen.uniform(0.2, 3.0))
    soaked: Soaked = running.result()
    after = call(tier_agents.at_rest, before)
    figures = call(tier_windows.figures)
    return Report(soaked, kills, before, after, store.flush(namespace), figures)


def _wait(running: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not running.done():
        time.sleep(0.05)


def show(report: Report) -> None:
    """The figures, one a line."""
    soaked = report.soaked
    print(f"{soaked.turns} turns, {soaked.cached} of {soaked.asked} prompt tokens found; kills: {dict(report.kills)}")
    print(f"gap between tokens: median {statistics.median(soaked.gaps):.3f} s, longest {max(soaked.gaps):.2f} s")
    print(f"first token: median {statistics.median(soaked.firsts):.2f} s, longest {max(soaked.firsts):.2f} s")
    for name, value in report.after.items():
        print(f"{name:20}{report.before[name]:6} before {value:6} after")
    print(f"keys in the store after a flush: {report.left}")
    print("\n".join(report.faults) or "every token equal, nothing left behind")


def main() -> None:
    """Run it, print the report, and end with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--way", choices=("offload", "store"), default="offload")
    parser.add_argument("--seed", type=int, default=0, help="of the kills and of the sessions' order")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    from glm53.model import make

    tier_rig.LONGEST_S = 60.0 * given.minutes + 300.0
    with tempfile.TemporaryDirectory() as text, engine_process() as (call, begin):
        folder = Path(text)
        make(folder / "model", context=2048)
        agents = reference(call, folder / "model", 8, 8)
        with FaultyStore(folder / "logs") as store:
            report = soak(call, begin, folder / "model", store, given.way, agents, 60.0 * given.minutes, given.seed)
            call(tier_rig.stop)
    if given.json:
        told: dict[str, Any] = {name: value for name, value in vars(report).items() if name != "soaked"}
        print(json.dumps(told | {"soaked": vars(report.soaked), "faults": report.faults}, indent=1))
    else:
        show(report)
    if report.faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
