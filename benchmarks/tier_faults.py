"""What faults of the store cost a running engine: vLLM's CPU engine with the tier, real Mooncake processes, each fault.

A request decodes while others arrive, one every so many of its tokens. The gaps between its tokens while a fault lasts
are held against those of two windows without one, before and after, whose prompts are computed too: that is what a
fault may cost, because blocks that cannot be loaded are computed. Once the fault is over, prompts are stored and asked
for until one is found in the store. All tokens are held against those of an engine without a tier.

Usage: ``python benchmarks/tier_faults.py [--json] [--only NAME ...] [--way NAME ...] [--rounds N]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tier_rig
import tier_windows
from faulty_store import LEASE_S, FaultyStore
from tier_rig import Call, engine_process
from tier_windows import Shape, Window

__all__ = ["FAULTS", "Found", "measure", "reference", "serving"]

WAYS = ("offload", "store")
WELL, BEFORE, FAULTY, AFTER = range(4)


@contextmanager
def _lost(call: Call) -> Iterator[None]:
    call(tier_windows.lose_before_load, True)
    try:
        yield
    finally:
        call(tier_windows.lose_before_load, False)


#: Name -> the fault, which begins and ends with the context. keys: of the objects that the window asks for.
FAULTS: dict[str, Callable[[FaultyStore, Call, Sequence[str]], AbstractContextManager[None]]] = {
    "master killed": lambda store, call, keys: store.killed("master"),
    "master hangs": lambda store, call, keys: store.hanging("master"),
    "pool killed": lambda store, call, keys: store.killed("pool"),
    "pool hangs": lambda store, call, keys: store.hanging("pool"),
    "pool full": lambda store, call, keys: store.full(),
    "lease over": lambda store, call, keys: _lost(call),
    "network slow": lambda store, call, keys: store.slow(),
    "objects corrupt": lambda store, call, keys: store.corrupt(keys),
}


@dataclass(frozen=True)
class Found:
    """Of one fault; times in seconds. gaps are those between tokens by `tier_rig.own_clock`, as median, 90th percentile
    and mean, and ``wall`` the mean by the wall's clock, on which whatever else the machine does counts, too.

    ratios: gaps in the fault divided by those without, each the median of the rounds. noise: the same of the mean gap
    after the fault and before it. cached: prompt tokens found in each kind of window. figures: what the tier counted
    meanwhile.
    """

    gaps: dict[str, float]
    gaps_in_fault: dict[str, float]
    ratios: dict[str, float]
    longest_gap: float
    longest_gap_in_fault: float
    noise: float
    first_token_stored: float
    first_token_computed: float
    first_token_in_fault: float
    recovered_s: float
    tokens_equal: bool
    cached: list[int]
    figures: dict[str, float]


def reference(call: Call, model: Path, shape: Shape) -> list[list[int]]:
    """What an engine without a tier answers, to the prompts of all windows and at last to the running request."""
    call(tier_rig.start, str(model), "none")
    return list(call(tier_windows.truths, [ids for window in range(4) for ids in shape.prompts(window)]))


def serving(call: Call, model: Path, way: str, store: FaultyStore) -> str:
    """Start the engine with the tier; its namespace."""
    call(tier_rig.start, str(model), way, {"master": store.master, "lease_s": LEASE_S})
    call(tier_windows.store, [tier_rig.prompt(300, 0)])
    return str(call(tier_windows.namespace))


def measure(call: Call, store: FaultyStore, namespace: str, fault: str, truth: list[list[int]], shape: Shape) -> Found:
    """Let one fault happen to an engine that serves; truth: of `reference`."""
    before = call(tier_windows.figures)
    rounds = [_round(call, store, namespace, fault, shape) for _ in range(shape.rounds)]
    after = call(tier_windows.figures)
    windows = {kind: [one[kind] for one, _ in rounds] for kind in range(4)}
    computed = windows[BEFORE] + windows[AFTER]
    pairs = [(_measures([one[FAULTY]]), _measures([one[BEFORE], one[AFTER]])) for one, _ in rounds]
    return Found(
        gaps=_measures(computed),
        gaps_in_fault=_measures(windows[FAULTY]),
        ratios={name: statistics.median(faulty[name] / well[name] for faulty, well in pairs) for name in pairs[0][0]},
        noise=statistics.median(_mean(one[AFTER]) / _mean(one[BEFORE]) for one, _ in rounds),
        longest_gap=max(gap for one in computed for gap in one.gaps),
        longest_gap_in_fault=max(gap for one in windows[FAULTY] for gap in one.gaps),
        first_token_stored=_first(windows[WELL]),
        first_token_computed=_first(computed),
        first_token_in_fault=_first(windows[FAULTY]),
        recovered_s=statistics.median(recovered for _, recovered in rounds),
        tokens_equal=all(_equal(one, truth) for one, _ in rounds),
        cached=[sum(sum(one.cached) for one in windows[kind]) for kind in range(4)],
        figures={name: n - before.get(name, 0.0) for name, n in sorted(after.items()) if n != before.get(name)},
    )


def _round(call: Call, store: FaultyStore, namespace: str, fault: str, shape: Shape) -> tuple[dict[int, Window], float]:
    """The windows, and the seconds from the end of the fault to the first hit."""
    prompts = [shape.prompts(window) for window in range(4)]
    store.flush(namespace)
    call(tier_windows.store, prompts[FAULTY])
    keys = sorted(store.keys(namespace))
    call(tier_windows.store, prompts[WELL])
    windows: dict[int, Window] = {}
    for kind in (WELL, BEFORE):
        call(tier_windows.begin)
        windows[kind] = call(tier_windows.end, prompts[kind], shape.every)
    call(tier_windows.begin)
    with FAULTS[fault](store, call, keys):
        windows[FAULTY] = call(tier_windows.end, prompts[FAULTY], shape.every)
    recovered = float(call(tier_windows.recovered, time.monotonic()))
    call(tier_windows.begin)
    windows[AFTER] = call(tier_windows.end, prompts[AFTER], shape.every)
    return windows, recovered


def _equal(windows: dict[int, Window], truth: list[list[int]]) -> bool:
    """Whether all answers are those of the reference, and the running requests' tokens its, as far as it
    went on."""
    answers = [answer for kind in range(4) for answer in windows[kind].answers]
    pairs = [tokens for one in windows.values() for tokens in zip(one.decoded, truth[-1], strict=False)]
    return answers == truth[:-1] and all(token == right for token, right in pairs)


def _measures(windows: Sequence[Window]) -> dict[str, float]:
    gaps = [gap for one in windows for gap in one.gaps]
    return {
        "p50": statistics.median(gaps),
        "p90": statistics.quantiles(gaps, n=10)[-1],
        "mean": statistics.mean(gaps),
        "wall": statistics.mean(gap for one in windows for gap in one.wall),
    }


def _mean(window: Window) -> float:
    return statistics.mean(window.gaps)


def _first(windows: Sequence[Window]) -> float:
    return statistics.median(first for one in windows for first in one.firsts)


_COLUMNS = (
    "",
    "gap p50, ms",
    "p90",
    "in the fault: p50",
    "p90",
    "ratio of p50",
    "p90",
    "mean",
    "wall",
    "first token: stored, computed, in the fault",
    "hit after",
    "tokens equal",
)
HEADER = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def row(name: str, one: Found) -> str:
    """A line of the table, as it stands in docs/mooncake_tier.md."""
    gaps = [one.gaps["p50"], one.gaps["p90"], one.gaps_in_fault["p50"], one.gaps_in_fault["p90"]]
    firsts = [one.first_token_stored, one.first_token_computed, one.first_token_in_fault]
    cells = [
        name,
        *(f"{1e3 * gap:.1f}" for gap in gaps),
        *(f"{ratio:.2f}" for ratio in one.ratios.values()),
        ", ".join(f"{first:.2f}" for first in firsts) + " s",
        f"{one.recovered_s:.1f} s",
        "yes" if one.tokens_equal else "NO",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure every fault and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--only", nargs="*", choices=tuple(FAULTS), default=tuple(FAULTS), help="faults")
    parser.add_argument("--way", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=Shape().rounds, help="how often each fault happens")
    parser.add_argument("--arrivals", type=int, default=Shape().arrivals, help="requests of a window")
    given = parser.parse_args()
    from glm53.model import make

    shape = Shape(given.rounds, given.arrivals)
    report: dict[str, dict[str, Any]] = {}
    if not given.json:
        print(HEADER)
    with tempfile.TemporaryDirectory() as text, engine_process() as (call, _):
        folder = Path(text)
        make(folder / "model", context=2048)
        truth = reference(call, folder / "model", shape)
        for way in given.way:
            with FaultyStore(folder / way) as store:
                namespace = serving(call, folder / "model", way, store)
                for fault in given.only:
                    one = measure(call, store, namespace, fault, truth, shape)
                    report.setdefault(way, {})[fault] = asdict(one)
                    if not given.json:
                        print(row(f"{way}: {fault}", one), flush=True)
                call(tier_rig.stop)
    if given.json:
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
