"""What one replay's records say: hits, waits, and what users and GPUs got."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Outcome", "middle", "outcome", "percentile"]


@dataclass(frozen=True)
class Outcome:
    """Of the requests that were measured. Times in milliseconds, rates in tokens a second, shares from 0 to 1.

    requests: how many. hit_rate: prompt tokens that were not computed; from_dram: the part of them that the tier gave.
    wait: from arrival to prefill's first step, loading from the tier included. ttft: to the first token, without the
    transfer of KV. user_rate: 1000 / mean time between tokens. output_rate: all users together; output_per_gpu: the
    same over all GPUs, those of prefill included.
    decode_wait: from the end of prefill to decode's first step, for room in its KV.
    """

    requests: int
    hit_rate: float
    from_dram: float
    wait_p50: float
    wait_p90: float
    ttft_p50: float
    ttft_p90: float
    ttft_mean: float
    itl_p90: float
    user_rate: float
    output_rate: float
    output_per_gpu: float
    decode_wait_p90: float

    def data(self) -> dict[str, Any]:
        """As plain data, rounded to what repeated runs can tell apart."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def outcome(result: Mapping[str, Any], turns: range | None, gpus: int) -> Outcome:
    """The outcome of these turns of every session; None is all.

    result: of `worker.main`. gpus: of all groups. Raises ValueError if no such turn was replayed.
    """
    records = [dict(zip(result["fields"], record, strict=True)) for record in result["records"]]
    taken = [one for one in records if turns is None or one["turn_index"] in turns]
    if not taken:
        raise ValueError(f"no turn of {turns} among {len(records)} records")
    prompts = sum(one["input_length"] for one in taken)
    waits = [one["prefill_admit_ms"] - one["arrival_time_ms"] for one in taken]
    ttfts = [one["ttft_ms"] for one in taken]
    between = [one["itl_ms"] for one in taken if one["itl_ms"] is not None]
    decode = [one["decode_admit_ms"] - one["source_held_ms"] for one in taken if one["decode_admit_ms"] is not None]
    begin, end = min(one["arrival_time_ms"] for one in taken), max(one["last_token_ms"] for one in taken)
    output_rate = sum(one["output_length"] for one in taken) / (end - begin) * 1000
    return Outcome(
        requests=len(taken),
        hit_rate=sum(one["reused_input_tokens"] for one in taken) / prompts,
        from_dram=sum(one["first_admission_host_reused_input_tokens"] or 0 for one in taken) / prompts,
        wait_p50=percentile(waits, 0.5),
        wait_p90=percentile(waits, 0.9),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p90=percentile(ttfts, 0.9),
        ttft_mean=statistics.fmean(ttfts),
        itl_p90=percentile(between, 0.9) if between else 0.0,
        user_rate=1000 / statistics.fmean(between) if between else 0.0,
        output_rate=output_rate,
        output_per_gpu=output_rate / gpus,
        decode_wait_p90=percentile(decode, 0.9) if decode else 0.0,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(share * 1e9) * len(ordered) // 1_000_000_000) - 1)]


def middle(outcomes: Sequence[Outcome]) -> Outcome:
    """The median of each field over repeated runs."""
    fields = {name: statistics.median(asdict(one)[name] for one in outcomes) for name in asdict(outcomes[0])}
    return Outcome(**fields | {"requests": outcomes[0].requests})
