"""A real engine that decodes while its real store fails: it goes on, nothing hangs, every token is right, it recovers.

Both ways in: the secondary tier with every fault, the store connector with those that its own code answers in another
way. All faults and the soak for both: MOONCAKE_TIER_WAYS="offload store". `benchmarks/tier_faults.py` measures the same
with more requests. A longer soak: MOONCAKE_TIER_SOAK=120, in seconds, or benchmarks/tier_soak.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import tier_agents
import tier_faults
import tier_rig
import tier_soak
from faulty_store import FaultyStore
from tier_rig import Call, engine_process
from tier_windows import Shape

if find_spec("vllm") is None:
    pytest.skip("needs vllm: run make test, which installs it", allow_module_level=True)
pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

SHAPE = Shape(rounds=1, arrivals=2, every=8)
WAYS = os.environ.get("MOONCAKE_TIER_WAYS", "offload").split()
#: Lookups without an answer, blocks that cannot be read, and blocks that do not prove themselves.
FEW = ("master killed", "pool killed", "objects corrupt")
CASES = [(way, fault) for way in WAYS for fault in tier_faults.FAULTS]
CASES += [("store", fault) for fault in FEW if "store" not in WAYS]
SOAK_S = float(os.environ.get("MOONCAKE_TIER_SOAK", "8"))
FOUND = 128  # tokens of each prompt that can be found: whole blocks, and whole chunks
#: Loads of a round that may fail. Each of its prompts has two blocks; what loads for ever fails thousands of times.
FEW_LOADS = 40

#: What the tier must have counted, so that it is sure that the fault was met.
COUNTED = {
    "master killed": ["breaker_opened"],
    "master hangs": ["lookups deadline", "breaker_opened"],
    "pool killed": ["loads failed", "loads deadline", "breaker_opened"],
    "pool hangs": ["loads deadline", "breaker_opened"],
    "pool full": ["rejected_puts"],
    "lease over": ["evicted"],
    "network slow": ["lookups ok", "lookups deadline", "loads deadline", "breaker_opened"],
    "objects corrupt": ["corrupt checksum"],
}


@dataclass(frozen=True)
class Process:
    """The engine's process: `call` waits for a result, `begin` does not."""

    call: Call
    begin: Call
    model: Path


@dataclass(frozen=True)
class Reference:
    """What an engine without a tier answers."""

    answers: list[list[int]]
    agents: list[list[Any]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    from glm53.model import make

    model = tmp_path_factory.mktemp("faults") / "glm"
    make(model, context=2048)
    with engine_process() as (call, begin):
        yield Process(call, begin, model)


@pytest.fixture(scope="module")
def reference(process: Process) -> Reference:
    answers = tier_faults.reference(process.call, process.model, SHAPE)
    return Reference(answers, process.call(tier_agents.sessions, 4, 4))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with FaultyStore(tmp_path_factory.mktemp("node")) as one:
        yield one


@pytest.fixture(scope="module")
def serving(process: Process, reference: Reference, store: FaultyStore) -> Callable[[str], str]:
    """Lets an engine serve in a way, unless it does already; returns its namespace."""
    now: dict[str, str] = {}

    def serve(way: str) -> str:
        if way not in now:
            now.clear()
            now[way] = tier_faults.serving(process.call, process.model, way, store)
        return now[way]

    return serve


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_decoding_goes_on_with_the_same_tokens_and_the_store_is_used_again(
    process: Process,
    reference: Reference,
    store: FaultyStore,
    serving: Callable[[str], str],
    way: str,
    fault: str,
) -> None:
    found = tier_faults.measure(process.call, store, serving(way), fault, reference.answers, SHAPE)

    assert found.tokens_equal
    assert any(found.figures.get(name) for name in COUNTED[fault]), found.figures
    well, *computed = found.cached
    assert well <= 2 * FOUND
    if fault in ("pool full", "network slow"):  # what is found late, or not evicted, is no fault
        computed.pop(1)
    assert not any(computed)
    loads = {name: number for name, number in found.figures.items() if name.startswith("loads ")}
    assert sum(loads.values()) - loads.get("loads ok", 0) <= FEW_LOADS


@pytest.mark.parametrize("way", WAYS)
def test_killing_the_store_again_and_again_leaves_nothing_behind(
    process: Process, reference: Reference, store: FaultyStore, way: str
) -> None:
    report = tier_soak.soak(process.call, process.begin, process.model, store, way, reference.agents, SOAK_S, seed=1)

    assert report.faults == []
    assert report.soaked.turns > 0
    assert sum(report.kills.values()) >= 2
    process.call(tier_rig.stop)
