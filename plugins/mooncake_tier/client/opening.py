"""A client that comes to be while the engine already serves: a store that is not there is waited for by nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import SettingRefused, TierUnavailable

__all__ = ["Opening"]

_log = logging.getLogger("mooncake_tier")


class Opening:
    """Connects in a thread of its own, and again after a pause until it works.

    connect: makes the client and registers its memory. wait_s: how long `pending` is true, so that the first requests
    wait for a store that is about to come. again_s: the pause.
    """

    def __init__(
        self,
        connect: Callable[[], TierClient],
        wait_s: float,
        again_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect, self._again, self._clock = connect, again_s, clock
        self._until = clock() + wait_s
        self._client: TierClient | None = None
        self._failed = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mooncake-tier-opening", daemon=True)
        self._thread.start()

    @property
    def client(self) -> TierClient | None:
        """The client, once there is one."""
        return self._client

    @property
    def pending(self) -> bool:
        """Whether it is worth waiting for: neither there nor failed nor late."""
        return self._client is None and not self._failed and self._clock() < self._until

    def close(self, within_s: float = 10.0) -> bool:
        """Connect no more, and close the client; returns False if something still runs inside Mooncake."""
        self._closed.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            return False
        return self._client.close(within_s) if self._client else True

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                self._client = self._connect()
                _log.info("mooncake_tier: the store is open")
                return
            except (TierUnavailable, SettingRefused) as error:
                if not self._failed:
                    _log.error("mooncake_tier: nothing is stored or found until the store can be used: %s", error)
                self._failed = True
            except Exception:
                _log.exception("mooncake_tier: connecting to the store ended with an error")
                self._failed = True
            self._closed.wait(self._again)
