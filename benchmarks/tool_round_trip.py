"""Round trips without end: random tools, texts that their grammar allows, what is read back, what the schema says.

Tools are as MCP servers describe them, or have any schema; texts are sampled through xgrammar's own token mask, over
single bytes and over tokens that span markers. A call must fit the original schema, or break a keyword that the build
named as relaxed; and valid arguments, as the chat template writes them, must be texts of the grammar. Every seed is
one list of tools, so a fault can be had again.

Usage: ``python benchmarks/tool_round_trip.py --state trips.json [--seconds 3600] [--texts 1000000]``; called again with
the same file it goes on where it stopped. Exit status: 0, or 1 if there is a fault, which the file holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

TESTS = Path(__file__).parents[1] / "tests" / "dynamo_structural_tags"
#: Texts and values of one list of tools.
TEXTS, VALUES = 24, 4
_SAVED_EVERY = 20  # seconds

if TYPE_CHECKING:
    from round_trips import Counts


def _saved(state: Path, counts: Counts, seed: int, seconds: float) -> None:
    """Write the file in one step: a run that is killed leaves the one before."""
    fresh = state.with_suffix(".part")
    fresh.write_text(json.dumps({"next_seed": seed, "seconds": seconds} | asdict(counts), indent=1), "utf-8")
    fresh.replace(state)


def main(argv: list[str] | None = None) -> int:
    """Run until the time is up or so many texts were read in all; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="counts and next seed; made if there is none")
    parser.add_argument("--seconds", type=float, default=600, help="of this run")
    parser.add_argument("--texts", type=int, default=10**9, help="in all runs together")
    parser.add_argument("--seed", type=int, default=0, help="where a new file begins")
    chosen = parser.parse_args(argv)
    sys.path.insert(0, str(TESTS))
    try:
        from round_trips import Counts, Sampler, round_trip
        from token_matcher import single_bytes, words
    finally:
        sys.path.remove(str(TESTS))

    counts, seed, before = Counts(), chosen.seed, 0.0
    if chosen.state.exists():
        told = json.loads(chosen.state.read_text("utf-8"))
        seed, before = told.pop("next_seed"), told.pop("seconds")
        counts = Counts(**told)
    samplers = [Sampler(single_bytes()), Sampler(words())]
    start = saved = time.monotonic()
    while counts.texts < chosen.texts and time.monotonic() - start < chosen.seconds:
        round_trip(seed, samplers[seed % 2], counts, texts=TEXTS, values=VALUES)
        seed += 1
        if time.monotonic() - saved > _SAVED_EVERY:
            saved = time.monotonic()
            _saved(chosen.state, counts, seed, before + saved - start)
    _saved(chosen.state, counts, seed, before + time.monotonic() - start)
    numbers = {name: value for name, value in asdict(counts).items() if name != "faults"}
    print(f"seeds {chosen.seed} to {seed - 1}: {numbers}, faults {len(counts.faults)}")
    print("\n".join(counts.faults[:20]), end="\n" if counts.faults else "")
    return int(bool(counts.faults))


if __name__ == "__main__":
    sys.exit(main())
