"""The input of a batch: one request a line in OpenAI's batch format, checked as a whole before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["Entry", "InputError", "Request", "index", "read"]

_KEYS = ("custom_id", "method", "url", "body")
_SHOWN = 20


class InputError(ValueError):
    """The input cannot be sent; the message names each line that is wrong."""


@dataclass(frozen=True)
class Entry:
    """Where a request lies. id: the same for the same request, another for any other. line: from 1. offset: bytes."""

    custom_id: str
    id: str
    model: str | None
    line: int
    offset: int


@dataclass(frozen=True)
class Request:
    """What to send: the body of a POST to `url`, a path such as /v1/chat/completions."""

    custom_id: str
    url: str
    body: dict[str, Any]


def index(path: Path) -> list[Entry]:
    """All requests of a file, without their bodies. Raises InputError naming every line that is not one.

    Lines that repeat a custom_id are wrong, too: their results could not be told apart. Empty lines are skipped.
    """
    entries: list[Entry] = []
    wrong: list[str] = []
    first: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            offset = 0
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    try:
                        request = _request(raw)
                        if request.custom_id in first:
                            raise ValueError(
                                f"custom_id {request.custom_id!r} is also that of line {first[request.custom_id]}"
                            )
                        first[request.custom_id] = number
                        model = request.body.get("model")
                        model = model if isinstance(model, str) else None
                        entries.append(Entry(request.custom_id, _id(request), model, number, offset))
                    except ValueError as error:
                        wrong.append(f"line {number}: {error}")
                offset += len(raw)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Name an existing file of requests.") from error
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise InputError(
            "\n  ".join(
                [f"{path} has {len(wrong)} line(s) that cannot be sent; nothing was sent:", *wrong[:_SHOWN], *more]
            )
        )
    if not entries:
        raise InputError(f"{path} holds no request. Write one a line, with {', '.join(_KEYS)}.")
    return entries


def read(file: BinaryIO, entry: Entry) -> Request:
    """The request of an entry. Raises InputError if the file has changed since it was indexed."""
    file.seek(entry.offset)
    try:
        request = _request(file.readline())
    except ValueError:
        request = None
    if request is None or _id(request) != entry.id:
        raise InputError(f"line {entry.line} has changed while the batch ran. Put it back, and run the batch again.")
    return request


def _request(raw: bytes) -> Request:
    """A line as a request. Raises ValueError saying what is wrong with it."""
    try:
        data = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return Request(*_checked(data))


def _checked(data: Any) -> Iterator[Any]:
    if not isinstance(data, dict):
        raise ValueError(f"it is no object but {type(data).__name__}")
    if missing := [key for key in _KEYS if key not in data]:
        raise ValueError(f"{', '.join(missing)} missing; a request has {', '.join(_KEYS)}")
    if unknown := sorted(data.keys() - set(_KEYS)):
        raise ValueError(f"unknown key {', '.join(unknown)}; a request has {', '.join(_KEYS)}")
    custom_id, method, url, body = (data[key] for key in _KEYS)
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError(f"custom_id={custom_id!r} is no text that names the request")
    if method != "POST":
        raise ValueError(f"method={method!r}; only POST can be sent")
    if not isinstance(url, str) or not url.startswith("/v1/"):
        raise ValueError(f"url={url!r}; give the path of an endpoint, such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise ValueError(f"body is no object but {type(body).__name__}")
    if body.get("stream"):
        raise ValueError("body.stream is set, but a result is one object; leave it out")
    yield from (custom_id, url, body)


def _id(request: Request) -> str:
    told = json.dumps([request.custom_id, request.url, request.body], sort_keys=True)
    return f"batch_req_{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if names.count(key) > 1)!r} is there twice")
    return keys


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
