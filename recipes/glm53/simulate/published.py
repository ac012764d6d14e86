"""The published figures, and whether a simulation reproduces them: told with the reason, never by silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from glm53.simulate.outcome import Outcome

__all__ = ["DECODE_MS", "NOT_SIMULATED", "PREFIX", "RATIO", "SESSIONS", "TTFT", "WAIT_4K", "WAIT_8K", "Check", "checks"]

#: The published results of a GLM-5.3 service for coding agents, on GB200 with one DEP8 prefill group and four TP4
#: decode groups: median queue wait in ms with chunks of 8192 and 4096, the change of TTFT between them, the prefix
#: cache of DEP8 in TEP8's, agents, and ms between tokens at 101 tokens a second.
WAIT_8K, WAIT_4K, TTFT, PREFIX, SESSIONS, RATIO = 550.0, 110.0, -0.20, 5.0, 66, 4
DECODE_MS = 1000 / 101

#: What replay has no part for, and where it is measured.
NOT_SIMULATED = {
    "descriptors 19,559 to 1,940, transfer 146 to 78 ms": "no layout or NIXL in the mocker: `glm53 plan blhnc`",
    "decode KV 1.09M to 1.63M tokens": "a size, which goes into the simulation: `glm53 plan kv`",
    "attention at 35 tokens 41 to 20.6 us": "no kernels in the mocker: docs/nvfp4.md",
    "p90 time between tokens -40 %": "the mocker's decode step takes the time it is given",
    "tool-call errors near zero": "the mocker has no tokens: docs/structural_tags.md",
}

Verdict = Literal["reproduced", "direction only", "not reproduced"]

_NEAR = 0.25  # of the published figure


@dataclass(frozen=True)
class Check:
    """One published figure. simulated: in the same unit. why: what makes the difference, or the agreement."""

    figure: str
    published: float
    simulated: float
    verdict: Verdict
    why: str

    def data(self) -> dict[str, Any]:
        return asdict(self)


def checks(found: Mapping[str, Mapping[str, Outcome]], prefix: float, prefix_8bit: float) -> list[Check]:
    """What can be held against a published figure. found: comparison -> label -> outcome.

    prefix: tokens of the data-parallel group's cache in the tensor-parallel one's; prefix_8bit: the same if the weights
    outside the experts took one byte each.
    """
    made: list[Check] = []
    if "shape" in found:
        why = "weights outside the experts are whole on each data-parallel rank: with them in 8 bits it would be "
        made.append(_check("prefix cache, DEP in TEP", PREFIX, prefix, 1.0, f"{why}{prefix_8bit:.1f}"))
    if "chunk" in found:
        large, small = found["chunk"]["8192"], found["chunk"]["4096"]
        ratio = small.wait_p50 / large.wait_p50 if large.wait_p50 else 1.0
        why = (
            "half a step is half as long with half the chunk; what else changed in production, and its load, is not "
            "published, and behind a cold prompt of the same rank a turn waits as long with either chunk"
        )
        made.append(_check("median wait, 4K in 8K", WAIT_4K / WAIT_8K, ratio, 1.0, why))
        for name, before, after in (
            ("median", large.ttft_p50, small.ttft_p50),
            ("mean", large.ttft_mean, small.ttft_mean),
        ):
            change = after / before - 1
            made.append(_check(f"{name} TTFT, 8K to 4K", TTFT, change, 0.0, "which of them is meant is not published"))
    if "ratio" in found:
        best = max(found["ratio"], key=lambda label: _worth(found["ratio"][label], found["ratio"]))
        why = "most output a GPU among ratios whose median TTFT is at most twice the lowest"
        made.append(_check("decode groups a prefill group", RATIO, float(best.partition(":")[2]), 1.0, why))
    return made


def _worth(one: Outcome, all_: Mapping[str, Outcome]) -> float:
    allowed = 2 * min(other.ttft_p50 for other in all_.values())
    return one.output_per_gpu if one.ttft_p50 <= allowed else -one.ttft_p50


def _check(figure: str, published: float, simulated: float, neutral: float, why: str) -> Check:
    """neutral: the value that would be no effect."""
    verdict: Verdict = "not reproduced"
    if abs(simulated - published) <= _NEAR * abs(published):
        verdict = "reproduced"
    elif (simulated - neutral) * (published - neutral) > 0 and simulated != neutral:
        verdict = "direction only"
    return Check(figure, published, simulated, verdict, why)
