"""A record's line, and what `problems` says of one that contradicts itself."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from capture_records import record

from rl_capture.record import digest, line, problems


def test_the_digest_is_of_32_bit_little_endian_integers() -> None:
    ids = [0, 1, 154_820, -1]

    assert digest(ids) == hashlib.sha256(struct.pack("<4i", *ids)).hexdigest()


@pytest.mark.parametrize("length", [0, 1, 2048, 2049, 10_000])
def test_a_line_is_the_records_json_whatever_its_length(length: int) -> None:
    made = record(session='with "quotes"\n\0', prompt={"ids": list(range(length)), "tokens": length, "sha256": "x"})

    written = line(made)
    assert written.endswith(b"}\n")
    assert written.count(b"\n") == 1
    assert json.loads(written) == made


def test_a_probability_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        line(record(output={"ids": [1], "logprobs": [float("nan")], "logprobs_mode": ""}))


def _output(**changed: Any) -> dict[str, Any]:
    return {"output": record()["output"] | changed}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"v": 2}, "v is 2"),
        ({"prompt": {"tokens": 2, "sha256": digest([1, 2, 3]), "ids": [1, 2, 3]}}, "tokens=2"),
        ({"prompt": {"tokens": 3, "sha256": digest([1, 2, 3]), "ids": [1, 2, 4]}}, "sha256"),
        ({"masked": {"prompt": 1, "output": 0}}, "0 ids of the prompt are masked"),
        ({"masked": {"prompt": 0, "output": 1}}, "0 ids of the output are masked"),
        (_output(logprobs=[-1.0]), "2 ids and 1 log-probabilities"),
        (_output(logprobs=[-1.0, None]), "token 1 of the output is masked in one list only"),
        (_output(logprobs=[-1.0, 0.5]), "log-probability 1"),
        ({"prompt": None}, "of another type"),
        ({"output": {}}, "is missing"),
        (_output(ids=["a", 7]), "of another type"),
        (_output(ids=[1 << 40, 7]), "of another type"),
        ({"prompt": {"tokens": 1, "sha256": "", "ids": [1 << 40]}}, "of another type"),
        ({"session": 5}, "session is 5"),
        ({"choice": 1 << 40}, "choice is 1099511627776"),
        ({"started": "x"}, "started is 'x'"),
        ({"finish": ["a"]}, "finish is ['a']"),
        ({"stop": {"a": 1}}, "stop is {'a': 1}"),
        ({"sampling": None}, "sampling is None"),
        ({"calls": "x" * 100}, "calls is 'xxx"),
        ({"text": {"prompt": 3, "output": ""}}, "text.prompt is 3"),
        ({"weights": record()["weights"] | {"epoch": ["a", "b"]}}, "two whole numbers"),
        ({"weights": record()["weights"] | {"epoch": [1]}}, "two whole numbers"),
        ({"weights": record()["weights"] | {"epoch": [1 << 40, 0]}}, "two whole numbers"),
    ],
)
def test_a_record_that_contradicts_itself_is_told(changed: dict[str, Any], said: str) -> None:
    (found,) = problems(record(**changed))

    assert said in found


def test_a_whole_record_has_no_problem_with_long_prompts_and_masks_neither() -> None:
    long = {"tokens": 300_000, "sha256": "f" * 64, "ids": None}

    assert problems(record()) == []
    assert problems(record(prompt=long)) == []
    assert problems(record(**_output(ids=[-1, 7], logprobs=[None, -1.0]), masked={"prompt": 0, "output": 1})) == []
    assert problems(record(**_output(logprobs=None))) == []
    assert problems([]) == ["it is a list and no object"]
    assert problems({"v": 1}) == ["adapter is missing"]
