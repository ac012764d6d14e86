"""What stands between engine and server, with a fake engine for what a real one does not do when asked.

The same path on a real engine: test_capture_serving_stock.py.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rl_capture import metrics
from rl_capture.answers import Request, chosen_logprobs
from rl_capture.generation import MARK, Capture, wanted
from rl_capture.weights import Weights


class Kind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class Params:
    """vLLM's sampling parameters, as far as capture looks at them."""

    output_kind: Kind = Kind.DELTA
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False
    extra_args: dict[str, Any] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


@dataclass
class Flat:
    """vLLM's flat container: one position after the other, the sampled token first."""

    token_ids: list[int]
    logprobs: list[float]
    start_indices: list[int]

    def __len__(self) -> int:
        return len(self.start_indices)


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: Any = None
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = -1.0


@dataclass
class Output:
    outputs: list[Completion]
    finished: bool = False
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2])


class Recorded:
    """Stands for the recorder."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def offer(self, answer: Request, tokens: int) -> bool:
        self.requests.append(answer)
        return True


def _flat(*tokens: int) -> Flat:
    return Flat(list(tokens), [-float(token) for token in tokens], list(range(len(tokens))))


def _engine(outputs: list[Output | Exception], seen: list[Any]) -> Any:
    async def generate(prompt: Any, params: Any, name: str, **more: Any) -> AsyncGenerator[Output, None]:
        seen.append(params)
        try:
            for output in outputs:
                await asyncio.sleep(0)
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            seen.append("closed")

    return generate


def _run(outputs: list[Any], params: Params | None = None, stop_after: int | None = None, **capture: Any) -> Any:
    """What the server gets, what was recorded, and what the engine saw."""
    recorded, seen, got = Recorded(), list[Any](), list[Any]()
    made = Capture(recorded, capture.pop("weights", Weights("base")), **capture)  # type: ignore[arg-type]

    async def serve() -> None:
        stream = made.generate(
            _engine(outputs, seen), {"prompt_token_ids": [1, 2]}, params or Params(), "r", {"session_id": "s"}
        )
        async for output in stream:
            got.append(output)
            if len(got) == stop_after:
                await stream.aclose()
                break
        for _ in range(5):
            await asyncio.sleep(0.01)

    asyncio.run(serve())
    return got, recorded.requests, seen


def test_deltas_are_joined_and_hidden() -> None:
    outputs = [
        Output([Completion([3], _flat(3))]),
        Output([Completion([4, 5], _flat(4, 5))]),
        Output([Completion([], Flat([], [], []), finish_reason="stop", stop_reason=9)], finished=True),
    ]
    params = Params()
    got, [request], seen = _run(outputs, params)

    answer = request.answers[0]
    assert (answer.ids, answer.logprobs) == ([3, 4, 5], [-3.0, -4.0, -5.0])
    assert (answer.finish, answer.stop, request.prompt, request.session) == ("stop", 9, [1, 2], "s")
    assert [(one.logprobs, one.cumulative_logprob) for output in got for one in output.outputs] == [(None, None)] * 3
    assert (seen[0].logprobs, seen[0].flat_logprobs, seen[0].extra_args) == (0, True, {MARK: True})
    assert (params.logprobs, params.flat_logprobs, params.extra_args) == (
        None,
        False,
        None,
    )  # the caller's own stay as they were


def test_outputs_that_bring_all_so_far_replace_each_other() -> None:
    outputs = [
        Output([Completion([3], _flat(3))]),
        Output([Completion([3, 4], _flat(3, 4), finish_reason="length")], finished=True),
    ]
    _, [request], _ = _run(outputs, Params(Kind.CUMULATIVE))

    assert (request.answers[0].ids, request.answers[0].logprobs) == ([3, 4], [-3.0, -4.0])


def test_what_a_client_asked_for_is_left_alone_and_read() -> None:
    position = {4: Logprob(-0.1), 3: Logprob(-2.5)}
    params = Params(logprobs=2)
    got, [request], seen = _run([Output([Completion([3], [position], finish_reason="stop")], True)], params)

    assert seen[0] is params
    assert got[0].outputs[0].logprobs == [position]
    assert request.answers[0].logprobs == [-2.5]


def test_prompt_logprobs_keep_the_form_that_their_client_expects() -> None:
    _, _, seen = _run([Output([Completion([3], None, finish_reason="stop")], True)], Params(prompt_logprobs=1))

    assert (seen[0].logprobs, seen[0].flat_logprobs, seen[0].extra_args) == (0, False, None)


def test_what_else_a_request_carries_stays_with_it() -> None:
    transfer = {"kv_transfer_params": {"do_remote_prefill": True}}
    _, _, seen = _run([Output([Completion([3], _flat(3), finish_reason="stop")], True)], Params(extra_args=transfer))

    assert seen[0].extra_args == {**transfer, MARK: True}
    assert list(transfer) == ["kv_transfer_params"]


def test_a_probability_that_the_engine_left_out_is_never_made_up() -> None:
    outputs = [Output([Completion([3], _flat(3))]), Output([Completion([4], None, finish_reason="stop")], True)]
    _, [request], _ = _run(outputs)

    assert (request.answers[0].ids, request.answers[0].logprobs) == ([3, 4], None)
    assert chosen_logprobs(_flat(3), [4]) is None
    assert chosen_logprobs([{3: Logprob(-1.0)}, None], [3, 4]) is None
    assert chosen_logprobs(_flat(3, 4), [3]) is None


def test_a_client_that_leaves_closes_the_engines_stream_at_once() -> None:
    outputs = [Output([Completion([token], _flat(token))]) for token in range(3, 9)]
    _, [request], seen = _run(outputs, stop_after=2)

    assert seen[-1] == "closed"
    assert (request.answers[0].ids, request.answers[0].finish) == ([3, 4], "abort")


def test_an_engine_that_breaks_leaves_an_answer_that_says_so() -> None:
    recorded, seen = Recorded(), list[Any]()
    capture = Capture(recorded, Weights("base"))  # type: ignore[arg-type]

    async def serve() -> None:
        engine = _engine([Output([Completion([3], _flat(3))]), RuntimeError("dead")], seen)
        async for _ in capture.generate(engine, "text", Params(), "r", {}):
            pass

    with pytest.raises(RuntimeError, match="dead"):
        asyncio.run(serve())
    assert [one.answers[0].finish for one in recorded.requests] == ["error"]


def test_a_request_without_a_token_leaves_nothing() -> None:
    _, requests, _ = _run([])

    assert requests == []


def test_an_output_of_another_form_costs_the_record_and_not_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    broken, last = Output([Completion([3], 7)]), Output([Completion([4], _flat(4), finish_reason="stop")], True)
    got, requests, _ = _run([broken, last])

    assert (got, requests) == ([broken, last], [])
    assert broken.outputs[0].logprobs is None
    assert "could not be recorded" in caplog.text


@pytest.mark.parametrize(
    ("prompt", "extra"),
    [
        ({"prompt_token_ids": [1]}, {"kv_transfer_params": {"do_remote_decode": True}}),
        ({"type": "multimodal", "prompt_token_ids": [1], "mm_kwargs": {}}, None),
        ({"prompt_embeds": [[0.0]]}, None),
        ({"prompt_token_ids": [1], "multi_modal_data": {"image": "x"}}, None),
        (object(), None),
    ],
)
def test_what_ids_do_not_tell_or_no_client_sees_is_skipped(prompt: Any, extra: Any) -> None:
    recorded, seen = Recorded(), list[Any]()
    capture = Capture(recorded, Weights("base"))  # type: ignore[arg-type]
    params = Params(extra_args=extra)

    async def serve() -> list[Any]:
        engine = _engine([Output([Completion([3], None, finish_reason="stop")], True)], seen)
        return [output async for output in capture.generate(engine, prompt, params, "r", {})]

    assert len(asyncio.run(serve())) == 1
    assert seen[0] is params
    assert recorded.requests == []


def test_a_sample_keeps_sessions_whole() -> None:
    names = [f"session-{number}" for number in range(4000)]
    kept = {name for name in names if wanted(name, 0.25)}

    assert kept == {name for name in names if wanted(name, 0.25)}
    assert 900 < len(kept) < 1100
    assert kept <= {name for name in names if wanted(name, 0.5)}
    assert all(wanted(name, 1.0) for name in names)


def test_a_session_outside_of_the_sample_is_not_touched() -> None:
    name = next(f"{number}" for number in range(100) if not wanted(f"{number}", 0.01))
    params, seen, recorded = Params(), list[Any](), Recorded()
    capture = Capture(recorded, Weights("base"), sample=0.01)  # type: ignore[arg-type]

    async def serve() -> None:
        engine = _engine([Output([Completion([3], None, finish_reason="stop")], True)], seen)
        async for _ in capture.generate(engine, "text", params, "r", {"session_id": name}):
            pass

    asyncio.run(serve())
    assert (seen[0] is params, recorded.requests) == (True, [])


def test_weights_are_asked_for_at_both_ends_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["default", "step-1"])
    asked: list[float] = []

    async def ask() -> str:
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.02)
        return next(versions)

    weights = Weights("base")
    outputs = [Output([Completion([3], _flat(3))]), Output([Completion([4], _flat(4), finish_reason="stop")], True)]
    got, [request], _ = _run(outputs, ask=ask, weights=weights)

    assert len(got) == 2
    assert (request.begin, request.end, len(asked)) == (None, "step-1", 2)


def test_an_engine_that_does_not_tell_its_weights_is_recorded_without() -> None:
    async def ask() -> str:
        raise RuntimeError("the ranks disagree")

    _, [request], _ = _run([Output([Completion([3], _flat(3), finish_reason="stop")], True)], ask=ask)

    assert (request.begin, request.end) == (None, None)


def test_a_declared_version_needs_no_question_and_updates_are_counted() -> None:
    async def ask() -> str:
        raise AssertionError

    weights = Weights("base")
    weights.declare(7)
    weights.touched()
    outputs = [Output([Completion([3], _flat(3), finish_reason="stop")], True)]
    _, [request], _ = _run(outputs, ask=ask, weights=weights)

    assert (request.begin, request.end, request.epochs) == ("7", "7", [1, 1])


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("reload_weights", True),
        ("update_weights", True),
        ("update_weights_from_path", True),
        ("finish_weight_update", True),
        ("start_weight_update", True),
        ("load_weights", True),
        ("init_weight_transfer_engine", False),
        ("get_weight_checksum", False),
        ("liveness_probe", False),
        ("add_lora", False),
    ],
)
def test_calls_that_change_weights_are_told_by_their_name(method: str, changes: bool) -> None:
    assert Weights.changed_by(method) is changes


def test_every_result_of_the_counters_is_explained() -> None:
    assert set(metrics.FIGURES["rl_capture_records"][1]) == set(metrics.RESULTS)
