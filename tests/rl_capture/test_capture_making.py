"""From a captured request to its records: what is masked, left out, told and joined."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer

from rl_capture.answers import Answer, Request
from rl_capture.engine import capture_for
from rl_capture.making import Maker
from rl_capture.record import digest, problems
from rl_capture.redaction import expressions
from rl_capture.settings import Settings
from rl_capture.token_bytes import TokenBytes
from rl_capture.weights import Weights

SECRET = "ghp_" + "a1B2" * 9
KNOWN = TokenBytes(ByteTokenizer())


@dataclass
class Params:
    """vLLM's sampling parameters, as far as a record tells them."""

    temperature: float = 0.5
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 9
    min_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False
    structured_outputs: Any = None


def _ids(text: str) -> list[int]:
    return list(text.encode())


def _request(prompt: str = "ask", *answers: Answer, **params: Any) -> Request:
    made = Request("r", "s", None, Params(**params), deltas=True)
    made.prompt = _ids(prompt)
    made.answers = dict(enumerate(answers or (Answer(_ids("ok"), [-0.5, -1.5], "stop", 9),)))
    return made


def _made(request: Request, **more: Any) -> list[dict[str, Any]]:
    found = more.pop("found", expressions("secrets"))
    maker = Maker("tiny", "raw_logprobs", Weights("base"), KNOWN, found, **more)
    records = [json.loads(one) for one in maker.lines(request)]
    assert [problems(one) for one in records] == [[]] * len(records)
    return records


def test_a_record_tells_the_answer_and_what_it_was_drawn_with() -> None:
    [record] = _made(_request())

    assert record["output"] == {"ids": _ids("ok"), "logprobs": [-0.5, -1.5], "logprobs_mode": "raw_logprobs"}
    assert record["prompt"] == {"tokens": 3, "sha256": digest(_ids("ask")), "ids": _ids("ask")}
    assert (record["request"], record["session"], record["finish"], record["stop"]) == ("r", "s", "stop", 9)
    assert (record["sampling"]["temperature"], record["sampling"]["constrained"]) == (0.5, False)
    assert record["masked"] == {"prompt": 0, "output": 0}
    assert record["calls"] is None
    assert "text" not in record


def test_a_secret_loses_ids_text_and_probabilities_on_both_sides() -> None:
    output = f"echo {SECRET};"
    answer = Answer(_ids(output), [-1.0] * len(output), "stop")
    [record] = _made(_request(f"key {SECRET}", answer), text=True)

    hidden = len(SECRET)
    assert record["masked"] == {"prompt": hidden, "output": hidden}
    assert record["prompt"]["ids"] == [*_ids("key "), *[-1] * hidden]
    assert record["prompt"]["sha256"] == digest(record["prompt"]["ids"])  # so that it tells nothing either
    assert record["output"]["logprobs"] == [*[-1.0] * 5, *[None] * hidden, -1.0]
    assert record["text"] == {"prompt": "key [redacted]", "output": "echo [redacted];"}


def test_with_none_everything_is_kept() -> None:
    [record] = _made(_request(f"key {SECRET}"), found=[], text=True)

    assert record["text"]["prompt"] == f"key {SECRET}"


def test_of_a_long_prompt_length_and_hash_are_kept() -> None:
    [short], [long] = (_made(_request("x" * size), prompt_tokens=4, text=True) for size in (4, 5))

    assert short["prompt"]["ids"] == _ids("xxxx")
    assert long["prompt"] == {"tokens": 5, "sha256": digest(_ids("xxxxx")), "ids": None}
    assert (short["text"]["prompt"], long["text"]["prompt"]) == ("xxxx", "")


def test_each_answer_of_a_request_is_a_record() -> None:
    answers = Answer(_ids("a"), [-1.0], "stop"), Answer(_ids("b"), None, "length")

    assert [(one["choice"], one["output"]["logprobs"]) for one in _made(_request("ask", *answers))] == [
        (0, [-1.0]),
        (1, None),
    ]


def test_a_stop_string_is_text() -> None:
    answer = Answer(_ids("a"), [-1.0], "stop", "END")

    assert _made(_request("ask", answer))[0]["stop"] is None
    assert _made(_request("ask", answer), text=True)[0]["stop"] == "END"


def test_a_certain_token_that_was_rounded_above_0_is_certain() -> None:
    [record] = _made(_request("ask", Answer(_ids("a"), [1e-9], "stop")))

    assert record["output"]["logprobs"] == [0.0]


def test_spans_tell_both_ends_where_nothing_else_does() -> None:
    answer = Answer(_ids("ab"), [-1.0, -1.0], "stop", spans=[["v1", 0, 1], ["v2", 1, 2]])
    [record] = _made(_request("ask", answer))

    assert record["weights"] == {
        "base": "base",
        "begin": "v1",
        "end": "v2",
        "epoch": [0, 0],
        "spans": [["v1", 0, 1], ["v2", 1, 2]],
    }


def test_outcomes_come_from_the_first_reader_that_knows_the_model_and_names_are_text() -> None:
    seen: list[tuple[str, str, str]] = []

    def known(prompt: str, output: str, finish: str) -> list[dict[str, Any]]:
        seen.append((prompt, output, finish))
        return [{"name": "weather", "outcome": "valid"}]

    readers = [lambda prompt, output, finish: None, known]
    assert _made(_request(f"key {SECRET}"), readers=readers)[0]["calls"] == [{"outcome": "valid"}]
    assert seen == [(f"key {SECRET}", "ok", "stop")]  # as the model had it
    assert _made(_request(), readers=readers, text=True)[0]["calls"] == [{"name": "weather", "outcome": "valid"}]
    assert _made(_request(), readers=readers[:1])[0]["calls"] is None


class Engine:
    """Stands for an engine that serves without a tokenizer."""

    class model_config:
        model, revision, served_model_name, logprobs_mode = "org/tiny", None, ["tiny"], "raw_logprobs"

    tokenizer = None


@pytest.mark.parametrize("changed", [{}, {"redact": "none", "text": True}])
def test_what_needs_the_tokenizer_is_refused_without_one(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--skip-tokenizer-init.*RL_CAPTURE_REDACT=none"):
        capture_for(Engine(), Settings(tmp_path / "records", outcomes=False, **changed))

    assert not (tmp_path / "records").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file")

    with pytest.raises(OSError, match="exists"):
        capture_for(Engine(), Settings(tmp_path / "records", redact="none", outcomes=False))
