"""Which server a command talks to, with which key, and what its refusals mean."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from glm53.local.stack import State

__all__ = ["BUSY", "FAILED", "RETRIABLE", "USAGE", "Problem", "Server", "find_server", "refusal", "unreachable"]

FAILED, USAGE, BUSY = 1, 2, 3

#: Answers that say "not now", from which a later try can differ. 529 is Dynamo's own "all workers are full".
RETRIABLE = frozenset({408, 429, 502, 503, 504, 529})

#: Variables from which httpx takes whom to trust.
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

_FULL = frozenset({429, 503, 529})


class Problem(Exception):
    """What went wrong, for people. code: the exit code of the command."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True)
class Server:
    """An OpenAI API. url: its base, with the version and without a slash at the end. key: None sends none."""

    url: str
    key: str | None = None

    @property
    def root(self) -> str:
        """The base without the version, to which the paths of a batch are added."""
        return self.url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of an httpx client: proxies of the environment, but none on the way to this machine.

        Raises Problem if the authority's certificates cannot be read.
        """
        try:
            trusted = httpx.create_ssl_context()
        except OSError as error:
            given = [f"{name}={os.environ[name]}" for name in _AUTHORITIES if os.environ.get(name)]
            raise Problem(
                f"{', '.join(given) or 'the certificates of httpx'}: no certificates can be read from there ({error}). "
                "Name a file in PEM format, or unset it.",
                USAGE,
            ) from error
        return {"headers": self.headers, "trust_env": not _is_here(self.url), "verify": trusted}


def find_server(url: str | None, run_dir: Path) -> Server:
    """The server at `url`, or else the deployment that runs in `run_dir`; the key is OPENAI_API_KEY's.

    Raises Problem if there is neither, the URL is none, or the key cannot be sent.
    """
    key = os.environ.get("OPENAI_API_KEY") or None
    if key and not (key.isascii() and key.isprintable()):
        raise Problem(
            "OPENAI_API_KEY has a character that no header can carry, such as a line end or an accented letter. Set it "
            "to the key alone.",
            USAGE,
        )
    if url is None:
        state = State.read(run_dir.resolve())
        if state is None:
            raise Problem(
                f"no server is named, and nothing runs in {run_dir}. Start a deployment with `glm53 up`, or give --url "
                "or OPENAI_BASE_URL.",
                USAGE,
            )
        return Server(f"{state.url}/v1", key)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Problem(f"--url {url!r} is no address of a server. Write it as in http://127.0.0.1:8000/v1.", USAGE)
    base = url.rstrip("/")
    return Server(base if parts.path.strip("/") else f"{base}/v1", key)


def unreachable(server: Server, error: object) -> Problem:
    """Nothing listens there, or it stopped answering."""
    return Problem(
        f"{server.url} does not answer ({error}). Is the deployment up (`glm53 status`), and the address right?", FAILED
    )


def refusal(
    server: Server, status: int, body: str, retry_after: str | None = None, model: str | None = None
) -> Problem:
    """What an answer that is no success means, and what to do."""
    said = _said(body)
    if status in _FULL:
        when = f"after {retry_after} s" if retry_after else "in a moment"
        what = "you send more than your key may" if status == 429 else "the deployment is full or not ready"
        return Problem(f"HTTP {status}: {what} ({said}). Try again {when}.", BUSY)
    if status in (401, 403):
        return Problem(f"HTTP {status}: {server.url} wants another key ({said}). Set OPENAI_API_KEY.", USAGE)
    if status == 404 and model is not None:
        return Problem(
            f"HTTP 404: {server.url} serves no model {model!r} ({said}). `glm53 models` lists what it serves.", USAGE
        )
    if 400 <= status < 500:
        return Problem(f"HTTP {status}: the request is refused ({said}). Change it.", USAGE)
    return Problem(f"HTTP {status}: the deployment failed ({said}). Its logs say why.", FAILED)


def _said(body: str) -> str:
    """The server's own words, from OpenAI's shape of an error, Dynamo's, or plain text."""
    try:
        data = json.loads(body)
    except ValueError:
        return " ".join(body.split())[:300] or "no reason given"
    if isinstance(data, dict):
        inner = data.get("error", data)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if message:
            return str(message)[:300]
    return body[:300]


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
