"""A fake of an OpenAI API, for answers that a real server gives only in rare states: a status for each try."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeApi", "fake_api"]


@dataclass
class FakeApi:
    """statuses: for each request's text the answers to its tries; afterwards 200. 0 closes the connection.

    tries: how often each text came. most: requests that were under way at once.
    """

    url: str = ""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    tries: dict[str, int] = field(default_factory=dict)
    most: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, text: str) -> int:
        """The status for this try."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            number = self.tries.get(text, 0)
            self.tries[text] = number + 1
        time.sleep(self.wait_s)
        statuses = self.statuses.get(text, [])
        with self._lock:
            self._now -= 1
        return statuses[number] if number < len(statuses) else 200


@contextlib.contextmanager
def fake_api(api: FakeApi) -> Iterator[FakeApi]:
    """Serve `api` on loopback inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = body["messages"][0]["content"]
            status = api.take(text)
            if status == 0:
                self.close_connection = True
                return
            usage = {"prompt_tokens": 2, "completion_tokens": 3}
            self._answer(status, {"said": text, "usage": usage} if status == 200 else {"message": f"status {status}"})

        def _answer(self, status: int, data: Any) -> None:
            content = json.dumps(data).encode()
            self.send_response(status)
            for name, value in {**api.headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
