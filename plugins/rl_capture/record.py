"""One answer of one request as a line of JSON: what each field is, how a line is made, and what is wrong with one.

| Field | |
|---|---|
| `v` | 1, version of this form |
| `request`, `choice`, `session` | id in the server; number of the answer, from 0; the client's session, or null |
| `model`, `adapter` | as served; name of the LoRA adapter, or null |
| `started`, `ended` | seconds since the epoch |
| `prompt` | `tokens`; `sha256` of `ids` as 32-bit little-endian integers; `ids`, null for a long prompt |
| `output` | `ids`, `logprobs` of each, natural logarithms, `logprobs_mode` as in vLLM; null for a masked one |
| `masked` | ids that redaction replaced by -1: `prompt`, `output` |
| `finish`, `stop` | "stop", "length", ..., "abort" (the client left) or "error"; the token or string that ended it |
| `weights` | `base`, `begin`, `end`, `epoch`, `spans`, see `weights` |
| `sampling` | what the token was drawn with, and `constrained` by a grammar or not |
| `calls` | tool calls with their `outcome`; null if no reader is installed, or none knows the model |
| `text` | `prompt`, `output`; only where the settings ask for it |
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

__all__ = ["MASKED", "VERSION", "digest", "line", "problems"]

VERSION = 1
#: Stands for a token id that redaction removed.
MASKED = -1

#: Numbers that are turned into text between two chances for other threads to run.
_PIECE = 2048

_FIELDS = {
    *("v", "request", "choice", "session", "model", "adapter", "started", "ended", "prompt", "output"),
    *("masked", "finish", "stop", "weights", "sampling", "calls"),
}

_INT, _TEXT, _TEXT_OR_NULL, _NUMBER = (int,), (str,), (str, type(None)), (int, float)

#: Place in a record -> what may stand there. `prompt.ids`, `output.ids` and `output.logprobs` are looked at one by one.
_KINDS: dict[str, tuple[type, ...]] = {
    "request": _TEXT,
    "choice": _INT,
    "session": _TEXT_OR_NULL,
    "model": _TEXT_OR_NULL,
    "adapter": _TEXT_OR_NULL,
    "started": _NUMBER,
    "ended": _NUMBER,
    "prompt.tokens": _INT,
    "prompt.sha256": _TEXT,
    "output.logprobs_mode": _TEXT_OR_NULL,
    "masked.prompt": _INT,
    "masked.output": _INT,
    "finish": _TEXT_OR_NULL,
    "stop": (int, str, type(None)),
    "weights.base": _TEXT_OR_NULL,
    "weights.begin": _TEXT_OR_NULL,
    "weights.end": _TEXT_OR_NULL,
    "weights.epoch": (list,),
    "weights.spans": (list, type(None)),
    "sampling": (dict,),
    "calls": (list, type(None)),
}


def digest(ids: Sequence[int]) -> str:
    """SHA-256 of the ids as 32-bit little-endian integers, in hexadecimal."""
    numbers = array("i", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return hashlib.sha256(numbers).hexdigest()


def line(record: dict[str, Any]) -> bytes:
    """A record as one line, its end included.

    Long lists are turned into text in pieces, because one call on 140,000 ids would keep every other thread of the
    process, and with it the server, waiting for milliseconds.
    """
    return _text(record).encode("ascii") + b"\n"


def problems(record: Any) -> list[str]:
    """What contradicts the form; empty for a record that is well."""
    if not isinstance(record, dict):
        return [f"it is a {type(record).__name__} and no object"]
    if record.get("v") != VERSION:
        return [f"v is {record.get('v')!r}, and this release reads {VERSION}"]
    if missing := sorted(_FIELDS - record.keys()):
        return [f"{missing[0]} is missing"]
    try:
        return [
            *_kind_problems(record),
            *_prompt_problems(record["prompt"], record["masked"]),
            *_output_problems(record),
        ]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        return [f"a part is missing or of another type: {type(error).__name__} {error}"]


def _kind_problems(record: dict[str, Any]) -> list[str]:
    """The first value that is not what its field holds."""
    places = {**_KINDS, **({"text.prompt": _TEXT, "text.output": _TEXT} if record.get("text") is not None else {})}
    for place, kinds in places.items():
        value: Any = record
        for part in place.split("."):
            value = value[part]
        if not isinstance(value, kinds) or not _fits(value):
            return [f"{place} is {_shown(value)}, which a record does not have there"]
    epoch = record["weights"]["epoch"]
    if len(epoch) != 2 or not all(isinstance(one, int) and _fits(one) for one in epoch):
        return [f"weights.epoch is {_shown(epoch)}, and must be two whole numbers"]
    return []


def _fits(value: Any) -> bool:
    """Whether a number is one of 32 bits, as all whole numbers of a record are; anything else fits."""
    return not isinstance(value, int) or -(1 << 31) <= value < 1 << 31


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _prompt_problems(prompt: dict[str, Any], masked: dict[str, int]) -> list[str]:
    ids = prompt["ids"]
    if ids is None:
        return []
    found = []
    if len(ids) != prompt["tokens"]:
        found.append(f"prompt has {len(ids)} ids and tokens={prompt['tokens']}")
    if digest(ids) != prompt["sha256"]:
        found.append("the prompt's ids do not have its sha256")
    if ids.count(MASKED) != masked["prompt"]:
        found.append(f"{ids.count(MASKED)} ids of the prompt are masked, and {masked['prompt']} are said to be")
    return found


def _output_problems(record: dict[str, Any]) -> list[str]:
    output, found = record["output"], []
    ids, logprobs = output["ids"], output["logprobs"]
    array("i", ids)  # raises for what is no list of 32-bit integers
    if ids.count(MASKED) != record["masked"]["output"]:
        found.append(f"{ids.count(MASKED)} ids of the output are masked, and not {record['masked']['output']}")
    if logprobs is None:
        return found
    if len(logprobs) != len(ids):
        return [*found, f"output has {len(ids)} ids and {len(logprobs)} log-probabilities"]
    for place, (token, value) in enumerate(zip(ids, logprobs, strict=True)):
        if (value is None) != (token == MASKED):
            return [*found, f"token {place} of the output is masked in one list only"]
        if value is not None and not (math.isfinite(value) and value <= 0):
            return [*found, f"log-probability {place} of the output is {value}"]
    return found


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list) and len(value) > _PIECE:
        pieces = (value[start : start + _PIECE] for start in range(0, len(value), _PIECE))
        return "[" + ",".join(_plain(piece)[1:-1] for piece in pieces) + "]"
    return _plain(value)


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
