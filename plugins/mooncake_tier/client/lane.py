"""Threads that make the calls which may hang, with a queue before them; a caller only ever puts into the queue."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from mooncake_tier.client.operation import Operation

__all__ = ["Lane", "leave_cores"]

_NICE = 10


def leave_cores(thread: threading.Thread) -> None:
    """From now on a thread gets a tenth of a core that others want, and all of one that nobody wants.

    A process without privileges cannot take that back.
    """
    assert thread.native_id is not None
    with contextlib.suppress(OSError):  # where a sandbox forbids it, waiting costs more, and nothing else
        given = os.getpriority(os.PRIO_PROCESS, thread.native_id)  # on Linux of this thread alone
        os.setpriority(os.PRIO_PROCESS, thread.native_id, given + _NICE)


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
        self._name = name
        self._change = threading.Condition()
        self._running: dict[Operation, int] = {}
        self._threads = [self._start(number) for number in range(threads)]

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

    def step_back(self, operation: Operation) -> None:
        """This operation is slow: the thread inside its call leaves the cores to others.

        Mooncake waits in a loop that never sleeps for a pool that hangs or has died, while requests decode. The thread
        ends with the call, and a fresh one takes its place.
        """
        with self._change:
            number = self._running.pop(operation, None)
            if number is None:
                return
            late = self._threads[number]
            try:
                self._threads[number] = self._start(number, after=late)
            except RuntimeError:  # the system has no thread left: the late one goes on as it is
                return
            leave_cores(late)

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

    def _start(self, number: int, after: threading.Thread | None = None) -> threading.Thread:
        name = f"mooncake-tier-{self._name}-{number}"
        thread = threading.Thread(target=self._work, args=(number, after), name=name, daemon=True)
        thread.start()
        return thread

    def _work(self, number: int, after: threading.Thread | None) -> None:
        if after:
            after.join()
        while operation := self._next(number):
            if operation.poll() is None and operation.begin():  # else it is too late to begin
                try:
                    self._run(operation, number)
                finally:
                    operation.end()
            with self._change:
                self._running.pop(operation, None)
                if self._threads[number] is not threading.current_thread():
                    return

    def _next(self, number: int) -> Operation | None:
        """The next of the queue, once there is one; None if there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return None
            operation, nbytes = self._queue.popleft()
            self._waiting_bytes -= nbytes
            self._running[operation] = number
            return operation
