"""From captured answers to lines in files, in a thread of its own: serving never waits for it."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rl_capture import metrics
from rl_capture.files import Writer

__all__ = ["Recorder"]

_log = logging.getLogger(__name__)

#: Seconds that an ending process waits for what is still to be written.
_LAST = 10.0


class Recorder:
    """A bounded queue and the thread that empties it.

    writer: the files; only the thread uses it. make: turns what was offered into lines. queue_tokens: bound of the
    tokens that wait, which is what waiting answers cost in memory. count: where results are counted.
    """

    def __init__(
        self,
        writer: Writer,
        make: Callable[[Any], list[bytes]],
        queue_tokens: int,
        count: Callable[..., None] = metrics.count,
    ) -> None:
        self._writer, self._make, self._limit, self._count = writer, make, queue_tokens, count
        self._waiting: deque[tuple[Any, int]] = deque()
        self._tokens = 0
        self._changed = threading.Condition()
        self._ending = False
        self._warned: set[str] = set()
        self._dropped = 0
        count("files_recovered", writer.recovered)
        self._thread = threading.Thread(target=self._run, name="rl-capture", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def offer(self, answer: Any, tokens: int) -> bool:
        """Take an answer, or count and drop it where too much waits. Never blocks. tokens: of prompt and output."""
        with self._changed:
            # One larger than the whole bound passes an empty queue, or it never would.
            taken = not self._ending and (not self._waiting or self._tokens + tokens <= self._limit)
            if taken:
                self._waiting.append((answer, tokens))
                self._tokens += tokens
                self._changed.notify()
        if not taken:
            self._told("queue", "requests end faster than records are written")
        return taken

    def close(self) -> None:
        """Write what waits and close the file, for at most some seconds. Harmless when repeated."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(_LAST)
        atexit.unregister(self.close)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ending:
                    self._changed.wait()
                if not self._waiting:
                    break
                answer, tokens = self._waiting[0]  # it counts as waiting until it is written
            self._write(answer)
            with self._changed:
                self._waiting.popleft()
                self._tokens -= tokens
        try:
            self._writer.close()
        except OSError as error:
            _log.error("%s could not be closed: %s; it is closed when capture starts again", self._writer.path, error)

    def _write(self, answer: Any) -> None:
        try:
            for line in self._make(answer):
                result = self._writer.append(line)
                if result == "written":
                    self._count("records", result=result)
                    self._count("bytes", len(line))
                else:
                    self._told(result, "the folder has reached RL_CAPTURE_TOTAL_BYTES")
        except Exception as error:  # a record that cannot be made must not end the recording of others
            _log.exception("a record could not be written")
            self._told("failed", f"{type(error).__name__}: {error}")
        self._count("files_dropped", self._writer.dropped - self._dropped)
        self._dropped = self._writer.dropped

    def _told(self, result: str, why: str) -> None:
        self._count("records", result=result)
        if result not in self._warned:
            self._warned.add(result)
            _log.warning("answers are not recorded: %s (rl_capture_records_total{result=%r} counts them)", why, result)
