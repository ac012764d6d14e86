"""The comparisons: what is set beside what, with everything else equal, and each scenario replayed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glm53.deployment import Deployment
from glm53.simulate import simulator, trace
from glm53.simulate.outcome import Outcome, middle, outcome
from glm53.simulate.scenario import Scenario, job
from glm53.simulate.timing import Speeds
from glm53.simulate.trace import Agents

__all__ = ["COMPARISONS", "RATIOS", "Replays", "Row", "rows"]

#: Name -> what it compares.
COMPARISONS = {
    "shape": "data-parallel attention against tensor-parallel, on the same GPUs, without a DRAM tier",
    "chunk": "prefill chunks of 8192 against 4096 tokens",
    "router": "Dynamo's KV router against round robin",
    "tier": "with the DRAM tier against without",
    "pool": "DRAM that all ranks share against one part a rank, under round robin",
    "ratio": "decode groups a prefill group, with as many more agents",
}

RATIOS = (2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Row:
    """One side of a comparison. load: agents, as a fraction of those of the trace."""

    comparison: str
    label: str
    scenario: Scenario
    load: float = 1.0


def rows(base: Scenario, names: Iterable[str], ratios: Iterable[int] = RATIOS) -> list[Row]:
    """The sides of the comparisons of these names, in order."""
    found: list[Row] = []
    for name in names:
        if name == "shape":
            apart, whole = base.with_(tier=0), base.with_(tier=0).as_tensor_parallel
            gpus = base.prefill.gpus
            found += [Row(name, f"TEP{gpus}", whole), Row(name, f"DEP{gpus}", apart)]
        elif name == "chunk":
            found += [Row(name, f"{chunk}", base.with_(chunk=chunk)) for chunk in (8192, 4096)]
        elif name == "router":
            found += [Row(name, "round robin", base.with_(router="round_robin"))]
            found += [Row(name, "KV router", base.with_(router="kv_router"))]
        elif name == "tier" and base.tier:
            found += [Row(name, "without", base.with_(tier=0)), Row(name, "with", base)]
        elif name == "pool" and base.tier:
            blind = base.with_(router="round_robin")
            found += [Row(name, "a part a rank", blind), Row(name, "shared", blind.with_(shared=True))]
        elif name == "ratio":
            for ratio in ratios:
                decode = ratio * base.prefill_groups
                load = decode / base.decode_groups
                found.append(Row(name, f"1:{ratio}", base.with_(decode_groups=decode), load))
    return found


@dataclass
class Replays:
    """Replays scenarios, each once however many comparisons it is in.

    given: a real trace, which takes the place of agents'. deadline: on `time.monotonic`. say: takes progress.
    """

    deployment: Deployment
    agents: Agents
    speeds: Speeds
    folder: Path
    python: str
    deadline: float
    say: Callable[[str], None]
    repeats: int = 1
    given: Path | None = None
    given_block: int = 512

    def run(self, wanted: list[Row]) -> dict[tuple[str, float], list[Outcome]]:
        """(scenario's key, load) -> the outcome of each repeat. Raises `SimulationError`, `PlanError`, `TraceError`."""
        todo = {(row.scenario.key, self._load(row)): row.scenario for row in wanted}
        done: dict[tuple[str, float], list[Outcome]] = {}
        count = len(todo) * self.repeats
        for (key, load), scenario in todo.items():
            for repeat in range(self.repeats):
                begun = time.monotonic()
                done.setdefault((key, load), []).append(self._replay(scenario, load))
                number = (len(done) - 1) * self.repeats + repeat + 1
                self.say(f"{number} of {count}: {key}, {self._agents(load).sessions} agents: {_since(begun)}")
        return done

    def outcomes(self, wanted: list[Row], done: Mapping[tuple[str, float], list[Outcome]]) -> list[Outcome]:
        """The middle outcome of each row."""
        return [middle(done[row.scenario.key, self._load(row)]) for row in wanted]

    def spreads(self, wanted: list[Row], done: Mapping[tuple[str, float], list[Outcome]]) -> list[list[float]]:
        """Least and greatest median wait of each row's repeats: the router chooses between equals at random."""
        waits = [[one.wait_p50 for one in done[row.scenario.key, self._load(row)]] for row in wanted]
        return [[min(some), max(some)] for some in waits]

    def _load(self, row: Row) -> float:
        return 1.0 if self.given else row.load

    def _agents(self, load: float) -> Agents:
        return replace(self.agents, sessions=max(1, round(self.agents.sessions * load)))

    def _replay(self, scenario: Scenario, load: float) -> Outcome:
        agents = self._agents(load)
        path, block = self.given, self.given_block
        turns = None if path else agents.measured
        if path is None:
            path, block = self.folder / f"agents-{agents.sessions}.jsonl", agents.block
            trace.write(agents.requests(), path)
        described = job(self.deployment, scenario, self.speeds, self.folder)
        described |= {"trace": [str(path)], "trace_block": block}
        result = simulator.replay(self.python, described, self.folder, scenario.key, self.deadline)
        return outcome(result, turns, scenario.gpus)


def _since(begun: float) -> str:
    return f"{time.monotonic() - begun:.0f} s"
