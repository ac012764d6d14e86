"""What is made of a replay's records, on records made by hand; and when a published figure counts as reproduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glm53.simulate.outcome import Outcome, middle, outcome, percentile
from glm53.simulate.published import checks
from glm53.simulate.worker import FIELDS


def _record(turn: int, arrival: float, **changes: Any) -> list[Any]:
    """A turn that arrives, waits 100 ms, has its first token after 600 ms and 11 tokens 10 ms apart."""
    record = {
        "session_id": "a",
        "turn_index": turn,
        "arrival_time_ms": arrival,
        "prefill_admit_ms": arrival + 100,
        "first_token_ms": arrival + 600,
        "last_token_ms": arrival + 700,
        "ttft_ms": 600.0,
        "itl_ms": 10.0,
        "input_length": 1000,
        "output_length": 11,
        "reused_input_tokens": 896,
        "first_admission_host_reused_input_tokens": None,
        "source_held_ms": arrival + 580,
        "decode_admit_ms": arrival + 590,
    }
    assert set(changes) <= set(record)
    return [(record | changes)[field] for field in FIELDS]


def _result(*records: list[Any]) -> dict[str, Any]:
    return {"fields": list(FIELDS), "records": list(records)}


def test_every_field_follows_from_the_measured_turns() -> None:
    cold = {"reused_input_tokens": 0, "prefill_admit_ms": 1500.0, "ttft_ms": 1000.0, "last_token_ms": 2100.0}
    dram = {"first_admission_host_reused_input_tokens": 500, "itl_ms": 30.0}
    found = outcome(
        _result(_record(0, 0.0, ttft_ms=9e9), _record(1, 1000.0, **cold), _record(2, 3000.0, **dram)),
        range(1, 3),
        gpus=4,
    )

    assert found.requests == 2
    assert (found.hit_rate, found.from_dram) == (896 / 2000, 500 / 2000)
    assert (found.wait_p50, found.wait_p90) == (100.0, 500.0)
    assert (found.ttft_p50, found.ttft_p90, found.ttft_mean) == (600.0, 1000.0, 800.0)
    assert (found.itl_p90, found.user_rate) == (30.0, 1000 / 20)
    assert found.output_rate == pytest.approx(22 / 2.7)  # from 1,000 to 3,700 ms
    assert found.output_per_gpu == pytest.approx(22 / 2.7 / 4)
    assert found.decode_wait_p90 == 10.0


def test_every_request_of_a_real_trace_is_measured() -> None:
    assert outcome(_result(_record(0, 0.0), _record(7, 0.0, turn_index=None)), None, gpus=1).requests == 2


def test_a_trace_without_the_measured_turns_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no turn of range\(5, 9\) among 1"):
        outcome(_result(_record(0, 0.0)), range(5, 9), gpus=1)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.01, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10)]
)
def test_a_percentile_is_the_nearest_rank(share: float, value: int) -> None:
    assert percentile([3, 1, 2, 10, 9, 8, 7, 6, 5, 4], share) == value


def _outcome(**changes: float) -> Outcome:
    fields = dict.fromkeys(Outcome.__dataclass_fields__, 100.0) | changes
    return Outcome(**fields)  # type: ignore[arg-type]


def test_repeats_are_told_by_their_median() -> None:
    some = [_outcome(wait_p50=float(wait), ttft_p50=float(ttft)) for wait, ttft in ((1, 30), (5, 10), (3, 20))]

    assert (middle(some).wait_p50, middle(some).ttft_p50) == (3.0, 20.0)


@pytest.mark.parametrize(
    ("small", "verdict"), [(110, "reproduced"), (130, "reproduced"), (275, "direction only"), (550, "not reproduced")]
)
def test_the_wait_of_smaller_chunks_is_held_against_the_published_fifth(small: float, verdict: str) -> None:
    sides = {"8192": _outcome(wait_p50=550.0), "4096": _outcome(wait_p50=small)}
    wait, *_ = checks({"chunk": sides}, 1.0, 1.0)

    assert (wait.published, wait.simulated, wait.verdict) == (0.2, small / 550, verdict)


@pytest.mark.parametrize(
    ("small", "verdict"), [(800, "reproduced"), (840, "reproduced"), (950, "direction only"), (1100, "not reproduced")]
)
def test_the_first_token_of_smaller_chunks_is_held_against_the_published_fifth_less(small: float, verdict: str) -> None:
    for name, field in (("median", "ttft_p50"), ("mean", "ttft_mean")):
        sides = {"8192": _outcome(**{field: 1000.0}), "4096": _outcome(**{field: small})}
        (ttft,) = [one for one in checks({"chunk": sides}, 1.0, 1.0) if one.figure.startswith(name)][-1:]

        assert (ttft.published, ttft.verdict) == (-0.2, verdict)


@pytest.mark.parametrize(("ratio", "verdict"), [(5.2, "reproduced"), (3.2, "direction only"), (0.9, "not reproduced")])
def test_the_prefix_cache_is_held_against_five_times(ratio: float, verdict: str) -> None:
    (prefix,) = checks({"shape": {}}, ratio, 5.3)

    assert (prefix.published, prefix.simulated, prefix.verdict) == (5.0, ratio, verdict)
    assert prefix.why.endswith("5.3")


def test_the_best_ratio_is_the_most_output_a_gpu_with_a_first_token_in_time() -> None:
    sides = {
        "1:2": _outcome(ttft_p50=500.0, output_per_gpu=20.0),
        "1:4": _outcome(ttft_p50=900.0, output_per_gpu=30.0),
        "1:8": _outcome(ttft_p50=5000.0, output_per_gpu=40.0),
    }
    (best,) = checks({"ratio": sides}, 1.0, 1.0)
    assert (best.simulated, best.verdict) == (4.0, "reproduced")

    slower = {**sides, "1:4": replace(sides["1:4"], ttft_p50=2000.0)}
    (best,) = checks({"ratio": slower}, 1.0, 1.0)
    assert (best.simulated, best.verdict) == (2.0, "direction only")
