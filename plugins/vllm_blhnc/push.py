"""Push mode by name: decode says which of prefill's requests it waits for.

Stock's decode registers its own request id only. Prefill strips the random end that vLLM gives every id and takes the
oldest request that looks alike. Two requests under one client id (a retry, a fixed ``X-Request-Id``) then get each
other's blocks without an error, and requests with different ids on the two sides wait for each other forever.
Decode knows prefill's id, which came with the handoff, so the registration carries it, and prefill looks for that.
"""

from __future__ import annotations

from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler

__all__ = ["NamedMatches", "NamedRegistrations"]

NAME = "blhnc_prefill_request"

#: Registrations that may wait: of prefill requests that ended before, nothing else drops them.
_WAITING = 1 << 16


class NamedRegistrations(NixlPushConnectorScheduler):
    """Decode's scheduler."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As stock, and name prefill's request in what it is about to register."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        registration = self._push_pending_registrations.get(request.request_id)
        if registration is not None and (name := request.kv_transfer_params.get("remote_request_id")):
            registration[NAME] = name


class NamedMatches:
    """Mixin in front of prefill's push worker; all of it runs on stock's writer thread.

    Registrations without a name, of a decode without the plugin, are matched as stock does.
    """

    # Supplied by the stock worker class.
    _pending_d_registrations: dict[str, dict[str, Any]]
    _push_finished_blocks: dict[str, Any]

    def _handle_push_reg_notif(self, notif: bytes) -> None:
        try:
            registration = msgspec.msgpack.decode(notif[len(PUSH_REG_NOTIF_PREFIX) :])
        except msgspec.DecodeError:
            registration = None
        if not isinstance(registration, dict) or NAME not in registration:
            super()._handle_push_reg_notif(notif)  # type: ignore[misc]
            return
        prefill = registration[NAME]
        blocks = self._push_finished_blocks.pop(prefill, None)
        if blocks is None:  # Not finished yet.
            # Under prefill's id, by which stock drops what it waited for in vain.
            self._pending_d_registrations[prefill] = registration
            if len(self._pending_d_registrations) > _WAITING:
                self._pending_d_registrations.pop(next(iter(self._pending_d_registrations)))
        else:
            self._do_start_push_kv(prefill, blocks, registration)  # type: ignore[attr-defined]

    def _pop_matching_registration(self, request_id: str) -> dict[str, Any] | None:
        everyone = self._pending_d_registrations
        if request_id in everyone:
            return everyone.pop(request_id)
        # Stock would take one that looks alike, so it sees only those without a name.
        named = {key: each for key, each in everyone.items() if NAME in each}
        self._pending_d_registrations = {key: each for key, each in everyone.items() if NAME not in each}
        try:
            return super()._pop_matching_registration(request_id)  # type: ignore[misc]
        finally:
            self._pending_d_registrations |= named
