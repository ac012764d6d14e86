"""Asks a live endpoint for a forced call, to see whether a tag holds the answer; the doctor's only request."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from dynamo_structural_tags.doctor import Finding
from dynamo_structural_tags.metrics import FIGURES

__all__ = ["probe"]

#: What an address that is none, a server of something else, and JSON of another form raise.
_NO_ANSWER = (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError, AttributeError)
_WORD = "zq7-ack-4e1f"
_TOOL = "doctor_probe"
_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}, "list": {"type": "array", "items": {"enum": [3, 5]}}},
    "required": ["word", "list"],
}


def probe(url: str, *, timeout: float = 120) -> Iterator[Finding]:
    """Findings about the endpoint at this address, such as ``http://127.0.0.1:8000``; timeout in seconds."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        model = _get(f"{base}/v1/models", timeout)["data"][0]["id"]
        answer = _get(f"{base}/v1/chat/completions", timeout, _request(model))
        judged = _judged(answer["choices"][0])
    except urllib.error.HTTPError as error:
        body = " ".join(error.read().decode("utf-8", "replace").split())[:300]
        fix = "correct the address; if this request alone is refused, look at the worker's log"
        yield Finding("endpoint", "error", f"{error.url}: HTTP {error.code}: {body}", "an answer", fix)
        return
    except _NO_ANSWER as error:
        fix = "start it, or correct --url; it is the address without /v1"
        yield Finding("endpoint", "error", f"{base}: {error!r}", "an OpenAI endpoint with a model", fix)
        return
    yield Finding("endpoint", "ok", f"{base} serves {model}")
    yield judged
    yield from _metrics(base, timeout)


def _request(model: str) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": _TOOL, "parameters": _SCHEMA}}
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Tell a story. Call nothing."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": _TOOL}},
        "max_tokens": 400,
        "temperature": 0,
        # So that a model that is not trained does not think on to the end.
        "chat_template_kwargs": {"enable_thinking": False},
    }


def _judged(choice: dict[str, Any]) -> Finding:
    needed = f"a call of {_TOOL} with the one word that its schema allows"
    calls = (choice.get("message") or {}).get("tool_calls") or []
    reason = choice.get("finish_reason")
    if not calls and reason == "length":
        fix = "ask again; if it stays, see whether the template has enable_thinking and the reasoning ends"
        return Finding("tag", "note", "no call within 400 tokens: it cannot be told", needed, fix)
    fix = "see the findings about mode, parser and tags-off; the worker's log says what became of the tag"
    if not calls:
        return Finding("tag", "error", f"no call, finish_reason={reason}", needed, fix)
    text = calls[0].get("function", {}).get("arguments", "")
    try:
        arguments = json.loads(text)
        right = calls[0]["function"]["name"] == _TOOL and arguments["word"] == _WORD
        right = right and isinstance(arguments["list"], list) and all(item in (3, 5) for item in arguments["list"])
    except (ValueError, KeyError, TypeError):
        right = False
    if right:
        return Finding("tag", "ok", f"the forced call is as its schema says: {text[:120]}")
    return Finding("tag", "error", f"the forced call breaks its schema: {text[:120]}", needed, fix)


def _metrics(base: str, timeout: float) -> Iterator[Finding]:
    """The plugin's counters that are not zero; workers of Dynamo show them at their own address."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=timeout) as response:
            lines = response.read().decode("utf-8", "replace").splitlines()
    except (OSError, http.client.HTTPException) as error:
        yield Finding("metrics", "note", f"{base}/metrics: {error}")
        return
    names = tuple(f"{figure.name}_total" for figure in FIGURES if figure.kind == "counter")
    counts = [line.rpartition(" ") for line in lines if line.startswith(names)]
    if not counts:
        needed = "the counters of this plugin; a Dynamo worker has them at its own /metrics (DYN_SYSTEM_PORT)"
        yield Finding("metrics", "note", f"{base}/metrics has none of them", needed)
        return
    seen = ", ".join(f"{name}={value}" for name, _, value in counts if float(value))
    yield Finding("metrics", "ok", seen or "all counters are 0")


def _get(url: str, timeout: float, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)
