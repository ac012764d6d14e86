"""What each KV transfer really cost, read at NIXL's own interface and written as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from vllm_blhnc.plan import run_lengths

__all__ = ["RecordingAgent", "Transfer", "append_to"]

_log = logging.getLogger("vllm.vllm_blhnc")


@dataclass(frozen=True)
class Transfer:
    """One finished NIXL transfer.

    request: the request id the notification carries. operation: "READ" (pull) or "WRITE" (push).
    blocks: cache blocks moved. runs: runs of ids consecutive on both sides. regions: NIXL regions they span.
    descriptors, nbytes, post_us, transfer_us: NIXL's telemetry; bytes and microseconds. post_us is part of
        transfer_us, which ends when vLLM asks and finds the transfer done.
    """

    request: str
    operation: str
    layout: str
    blocks: int
    runs: int
    regions: int
    descriptors: int
    nbytes: int
    post_us: float
    transfer_us: float

    def line(self) -> str:
        """Every figure as ``key=value``, for a log that is read with grep."""
        return (
            f"request={self.request} operation={self.operation} layout={self.layout} blocks={self.blocks} "
            f"runs={self.runs} blocks_per_run={self.blocks / max(self.runs, 1):.1f} regions={self.regions} "
            f"descriptors={self.descriptors} bytes={self.nbytes} post_us={self.post_us:.0f} "
            f"wire_us={self.transfer_us - self.post_us:.0f} transfer_us={self.transfer_us:.0f}"
        )


class RecordingAgent:
    """A NIXL agent that reports every transfer whose telemetry is read; all else passes straight through.

    agent: the real ``nixl_agent``. regions: says how many regions the worker has registered by now.
    sink: called with each `Transfer`.
    """

    def __init__(self, agent: Any, layout: str, regions: Callable[[], int], sink: Callable[[Transfer], None]):
        self._agent = agent
        self._layout = layout
        self._regions = regions
        self._sink = sink
        self._posted: dict[Any, tuple[str, str, int, Sequence[int], Sequence[int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def make_prepped_xfer(
        self,
        operation: str,
        local_side: Any,
        local_ids: Sequence[int],
        remote_side: Any,
        remote_ids: Sequence[int],
        notif_msg: bytes = b"",
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As NIXL's own; descriptor ids are region-major, so the first region's ids tell blocks and runs."""
        handle = self._agent.make_prepped_xfer(
            operation, local_side, local_ids, remote_side, remote_ids, notif_msg, *args, **kwargs
        )
        regions = self._regions()
        blocks = len(local_ids) // regions
        request = notif_msg.decode("utf-8", "replace").rpartition(":")[0]
        self._posted[handle] = (request, operation, regions, remote_ids[:blocks], local_ids[:blocks])
        return handle

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """As NIXL's own; vLLM reads it once, when the transfer is done."""
        telemetry = self._agent.get_xfer_telemetry(handle)
        if (posted := self._posted.pop(handle, None)) is not None and telemetry is not None:
            request, operation, regions, source, destination = posted
            # Only now, so that counting does not hold up the posting.
            runs = run_lengths([int(i) for i in source], [int(i) for i in destination])
            self._sink(
                Transfer(
                    request=request,
                    operation=operation,
                    layout=self._layout,
                    blocks=len(source),
                    runs=len(runs),
                    regions=regions,
                    descriptors=telemetry.descCount,
                    nbytes=telemetry.totalBytes,
                    post_us=telemetry.postDuration,
                    transfer_us=telemetry.xferDuration,
                )
            )
        return telemetry

    def release_xfer_handle(self, handle: Any) -> None:
        """As NIXL's own; a transfer released before it was done leaves no record."""
        self._agent.release_xfer_handle(handle)
        self._posted.pop(handle, None)


def append_to(path: str) -> Callable[[Transfer], None]:
    """A sink that appends one JSON line per transfer to `path`, readable while the worker runs.

    Raises ValueError if the file cannot be opened. A write that fails later (a full disk) is logged and ends
    the record; it fails no transfer.
    """
    try:
        path = os.path.expanduser(path)
        if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(0, "it is a pipe, which would wait for a reader")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        file: TextIO | None = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - as long as the worker
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"kv_connector_extra_config.blhnc.transfer_log={path!r} cannot be written ({why}); it must "
            "be a file in a folder this worker may write to. Correct the path or leave the setting out."
        ) from error

    def write(transfer: Transfer) -> None:
        nonlocal file
        if file is None:
            return
        try:
            file.write(json.dumps(asdict(transfer)) + "\n")
        except OSError as error:
            _log.error("transfer_log=%s ends here: %s; serving goes on", path, error)
            file = None

    return write
