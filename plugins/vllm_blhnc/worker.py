"""The worker side of the connector: whole rows registered, verified, and every transfer recorded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    GET_META_MSG,
    NixlAgentMetadata,
    NixlHandshakePayload,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx
from vllm.utils.network_utils import make_zmq_path

from vllm_blhnc.checks import (
    MUST_MATCH,
    HandshakeMismatch,
    LayoutError,
    Registered,
    check_registration,
    peer_differences,
    wrong_layout,
)
from vllm_blhnc.metrics import BlockRowStats
from vllm_blhnc.plan import block_row
from vllm_blhnc.settings import KEY, Settings
from vllm_blhnc.stock import release
from vllm_blhnc.transfers import RecordingAgent, Transfer, append_to

if TYPE_CHECKING:
    import torch

__all__ = ["BlockRowWorker", "settings_of"]

_log = logging.getLogger("vllm.vllm_blhnc")


def settings_of(vllm_config: Any) -> Settings:
    """The plugin's settings in vLLM's configuration."""
    return Settings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)


class BlockRowWorker:
    """Mixin in front of a stock NIXL worker class (pull or push), for the layout the settings ask for."""

    # Supplied by the stock worker class.
    _layer_specs: dict[str, Any]
    _supports_pp_hma: bool
    num_regions: int

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        self._settings = settings_of(vllm_config)
        if self._settings.block_rows:
            _refuse_what_has_no_rows(vllm_config)
            # Push workers have the switch on by themselves.
            if release().rows_need_switch:
                self._supports_pp_hma = True
        cores = os.sched_getaffinity(0)
        super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]
        if os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind":
            # Stock has moved a CPU worker's main thread to the machine's last core, which it keeps free when it
            # binds the compute threads. Unbound, that would crowd all workers of a machine onto one core.
            os.sched_setaffinity(0, cores)
        self.xfer_stats = BlockRowStats()
        self._row_padding = 0  # bytes without KV in each block that NIXL moves; known once caches are registered
        self.nixl_wrapper: Any = RecordingAgent(
            self.nixl_wrapper, self._settings.layout, lambda: self.num_regions, self._sink()
        )

    def _sink(self) -> Callable[[Transfer], None]:
        path = self._settings.transfer_log
        to_file = append_to(path) if path else None

        def record(transfer: Transfer) -> None:
            _log.debug("KV transfer %s", transfer.line())
            self.xfer_stats.record_blocks(transfer, self._row_padding)
            if to_file:
                to_file(transfer)

        return record

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Register as stock does, then compare what was registered with what the cache specs ask for."""
        if not self._settings.block_rows:
            super().register_kv_caches(kv_caches)  # type: ignore[misc]
            self._count_rows(kv_caches)
            return
        if self.kv_cache_layout != "BLHNC":  # type: ignore[attr-defined]
            raise LayoutError(wrong_layout(self.kv_cache_layout))  # type: ignore[attr-defined]
        if self.use_host_buffer:  # type: ignore[attr-defined]
            raise LayoutError(
                f"kv_buffer_device={self.kv_buffer_device} stages KV in host buffers that "  # type: ignore[attr-defined]
                "hold one layer each, so there are no rows to register. Leave kv_buffer_device at its default."
            )
        super().register_kv_caches(kv_caches)  # type: ignore[misc]
        specs = {name: spec for name, spec in self._layer_specs.items() if name in kv_caches}
        pages = {name: spec.page_size_bytes for name, spec in specs.items()}
        row = block_row(pages, [release().alignment(spec) for spec in specs.values()])
        mine = self._own_metadata()
        check_registration(
            Registered(
                layout=mine["kv_cache_layout"],
                lengths=mine["block_lens"],
                strides=mine["block_strides"],
                members={name: (page[0], page[1]) for name, page in mine["packed_member_layouts"].items()},
                layer_strides={name: kv_caches[name].stride(0) * kv_caches[name].element_size() for name in specs},
            ),
            row,
            pages,
        )
        self._count_rows(kv_caches)
        _log.info(
            "vllm_blhnc: %d caches in one region of %d rows, %d bytes each (%d of KV, aligned to %d)",
            len(specs),
            mine["num_blocks"],
            row.nbytes,
            row.payload,
            row.alignment,
        )

    def _count_rows(self, kv_caches: dict[str, torch.Tensor]) -> None:
        mine = self._own_metadata()
        moved = sum(mine["block_lens"])
        pages = sum(spec.page_size_bytes for name, spec in self._layer_specs.items() if name in kv_caches)
        self._row_padding = moved - pages
        self.xfer_stats.record_rows(
            mine["kv_cache_layout"], regions=self.num_regions, nbytes=moved, padding=self._row_padding
        )

    def add_remote_agent(self, nixl_agent_meta: NixlAgentMetadata, *args: Any, **kwargs: Any) -> str:
        """Accept a peer only if its rows hold the same pages in the same places."""
        self._refuse_if_different(nixl_agent_meta)
        return super().add_remote_agent(nixl_agent_meta, *args, **kwargs)  # type: ignore[misc]

    def _add_notif_only_remote_agent(self, metadata: NixlAgentMetadata, *args: Any, **kwargs: Any) -> str:
        """The same check where decode waits for prefill's writes; prefill's refusal would not reach it."""
        self._refuse_if_different(metadata)
        return super()._add_notif_only_remote_agent(metadata, *args, **kwargs)  # type: ignore[misc]

    def _nixl_handshake(self, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        """As stock; where its compatibility hash says no, ask the peer again and say what differs."""
        try:
            return super()._nixl_handshake(host, port, *args, **kwargs)  # type: ignore[misc]
        except RuntimeError as error:
            if "compatibility hash mismatch" not in str(error):
                raise
            peer = _ask_peer(host, port)
            if peer is None:
                found = ["vLLM's compatibility hash differs, and the peer did not answer what its cache is like"]
            else:
                found = peer_differences(self._own_metadata(), peer) or [
                    "its cache has the same shape, so the difference is the vLLM release, the model path or "
                    "dtype, --kv-cache-dtype, the draft model, pull against push, or the plugin on one side "
                    "only: make them equal"
                ]
            self.xfer_stats.record_refused_peer()
            raise HandshakeMismatch(_refusal(f"{host}:{port}", found)) from error

    def _refuse_if_different(self, peer: NixlAgentMetadata) -> None:
        # With layout "stock" everything but the layout is stock's business: it supports pairs that differ.
        fields = MUST_MATCH if self._settings.block_rows else ("kv_cache_layout",)
        as_sent = msgspec.msgpack.decode(msgspec.msgpack.encode(peer))
        if found := peer_differences(self._own_metadata(), as_sent, fields):
            self.xfer_stats.record_refused_peer()
            raise HandshakeMismatch(_refusal(peer.engine_id, found))

    def _own_metadata(self) -> dict[str, Any]:
        payload = self.xfer_handshake_metadata  # type: ignore[attr-defined]
        return msgspec.msgpack.decode(payload.agent_metadata_bytes)


def _refusal(peer: str, differences: list[str]) -> str:
    return f"prefill and decode do not agree, nothing is read from peer {peer}: " + "; ".join(differences) + "."


def _refuse_what_has_no_rows(vllm_config: Any) -> None:
    stock = f'kv_connector_extra_config.{KEY}.layout="stock"'
    if not vllm_config.model_config.use_mla:
        raise LayoutError(
            f"model {vllm_config.model_config.model} has no MLA, and only MLA pages, which every tensor-parallel "
            f"rank holds whole, can travel as rows. Serve an MLA model, or set {stock}."
        )
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise LayoutError(
            f"pipeline_parallel_size={stages}: a stage holds only part of each row, so there are no whole rows "
            f"to move. Use --pipeline-parallel-size 1, or set {stock}."
        )


def _ask_peer(host: str, port: int) -> dict[str, Any] | None:
    """The metadata of the peer's first worker, decoded without its schema; None if it does not answer."""
    with zmq_ctx(zmq.REQ, make_zmq_path("tcp", host, port)) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 5000)  # milliseconds
        socket.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
        try:
            payload = msgspec.msgpack.decode(socket.recv_multipart()[0], type=NixlHandshakePayload)
            return msgspec.msgpack.decode(payload.agent_metadata_bytes)
        except (zmq.Again, msgspec.DecodeError):
            return None
