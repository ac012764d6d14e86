"""Threads that make the calls which may hang, with a queue before them; a caller only ever puts into the queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from mooncake_tier.client.operation import Operation

__all__ = ["Lane"]


class Lane:
    """A queue of operations and the threads that run them.

    run: makes the call, given the operation and the thread's number from 0; it settles the operation
    and raises nothing.
    most_bytes: payload that may wait; more is refused. The threads are daemons, because a native call cannot be ended.
    """

    def __init__(
        self, name: str, run: Callable[[Operation, int], None], threads: int = 1, most_bytes: int = 1 << 62
    ) -> None:
        self._run, self._most = run, most_bytes
        self._queue: deque[tuple[Operation, int]] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._change = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"mooncake-tier-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, operation: Operation) -> bool:
        """Queue an operation; False if the queue is full or closed."""
        nbytes = sum(block.nbytes for block in operation.blocks)
        with self._change:
            # One operation is always taken, however large, so that nothing waits for ever.
            if self._closed or (self._queue and self._waiting_bytes + nbytes > self._most):
                return False
            self._queue.append((operation, nbytes))
            self._waiting_bytes += nbytes
            self._change.notify()
            return True

    @property
    def waiting(self) -> list[Operation]:
        """What is queued and not begun."""
        with self._change:
            return [operation for operation, _ in self._queue]

    def drain(self) -> list[Operation]:
        """Take out and return what is queued and not begun."""
        with self._change:
            taken = [operation for operation, _ in self._queue]
            self._queue.clear()
            self._waiting_bytes = 0
            return taken

    def close(self) -> list[Operation]:
        """Take nothing more and let the threads end after what they do now; returns what was queued."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        return self.drain()

    def join(self, until: float) -> list[str]:
        """Wait for the threads until this time of the monotonic clock; returns the names of those that still run."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _work(self, number: int) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                operation, nbytes = self._queue.popleft()
                self._waiting_bytes -= nbytes
            if operation.poll() is not None or not operation.begin():  # too late to begin
                continue
            try:
                self._run(operation, number)
            finally:
                operation.end()
