"""The worker side of the connector: whole rows registered, verified, and every transfer recorded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_blhnc.alignment import check_row
from vllm_blhnc.checks import LayoutError, Registered, check_registration, wrong_layout
from vllm_blhnc.draft_pages import head_sharded, places
from vllm_blhnc.handshake import RowPayload, facts
from vllm_blhnc.metrics import BlockRowStats
from vllm_blhnc.peer_facts import KEY, told
from vllm_blhnc.peers import CheckedPeers
from vllm_blhnc.plan import block_row
from vllm_blhnc.requirements import (
    no_common_block,
    refuse_configuration,
    refuse_groups,
    refuse_split_blocks,
)
from vllm_blhnc.settings import Settings
from vllm_blhnc.stock import release
from vllm_blhnc.transfers import RecordingAgent, Transfer, append_to

if TYPE_CHECKING:
    import torch

__all__ = ["BlockRowWorker", "settings_of"]

_log = logging.getLogger("vllm.vllm_blhnc")


def settings_of(vllm_config: Any) -> Settings:
    """The plugin's settings in vLLM's configuration."""
    return Settings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)


class BlockRowWorker(CheckedPeers):
    """Mixin in front of a stock NIXL worker class (pull or push), for the layout the settings ask for."""

    # Supplied by the stock worker class.
    _TRANSFER_MODE: str
    _layer_specs: dict[str, Any]
    _supports_pp_hma: bool
    block_size: int
    dcp_size: int
    kv_cache_config: Any
    num_regions: int
    pcp_size: int
    vllm_config: Any
    world_size: int

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        self._settings = settings_of(vllm_config)
        if self._settings.block_rows:
            refuse_configuration(vllm_config)
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

    def _sync_block_size_with_kernel(self) -> None:
        """As stock, which looks for a block size that all attention backends take; rows need the one asked for."""
        asked = self.block_size
        try:
            super()._sync_block_size_with_kernel()  # type: ignore[misc]
        except ValueError as error:
            raise no_common_block(asked, str(error)) from error
        if self._settings.block_rows:
            refuse_split_blocks(asked, self.block_size)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Register as stock does, then compare what was registered with what the cache specs ask for.

        Stock would register each page of a GQA draft model beside the rows that hold it, and so send its bytes
        twice. It is given the replicated caches alone, and the rows then carry the draft's pages.
        """
        if not self._settings.block_rows:
            super().register_kv_caches(kv_caches)  # type: ignore[misc]
            self._publish({}, None)
            self._count_rows(kv_caches)
            return
        if self.kv_cache_layout != "BLHNC":  # type: ignore[attr-defined]
            raise LayoutError(wrong_layout(self.kv_cache_layout))  # type: ignore[attr-defined]
        if self.use_host_buffer:  # type: ignore[attr-defined]
            raise LayoutError(
                f"kv_buffer_device={self.kv_buffer_device} stages KV in host buffers that "  # type: ignore[attr-defined]
                "hold one layer each, so there are no rows to register. Leave kv_buffer_device at its default."
            )
        specs = {name: spec for name, spec in self._layer_specs.items() if name in kv_caches}
        drafts = head_sharded(specs)
        refuse_groups(self.kv_cache_config, drafts, (self.dcp_size, self.pcp_size))
        super().register_kv_caches({k: v for k, v in kv_caches.items() if k not in drafts})  # type: ignore[misc]
        self.device_kv_caches = kv_caches
        base = self._own_metadata()["kv_caches_base_addr"][0]
        self._publish(places(kv_caches, specs, drafts, base), self.world_size if drafts else None)
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
        check_row(row, specs.values(), self._settings.row_alignment_tokens)
        self._count_rows(kv_caches)
        _log.info(
            "vllm_blhnc: %d caches in one region of %d rows, %d bytes each (%d of KV, aligned to %d)",
            len(specs),
            mine["num_blocks"],
            row.nbytes,
            row.payload,
            row.alignment,
        )

    def _publish(self, pages_of_drafts: dict[str, tuple[int, int]], draft_ranks: int | None) -> None:
        """Tell peers what stock does not know: pages (offset and length in bytes) inside the rows, and the facts."""
        mine = self._own_metadata()
        mine["packed_member_layouts"] |= pages_of_drafts
        # From 0.33 on stock compares them with the peer's.
        self._packed_member_layouts = {name: (page[0], page[1]) for name, page in mine["packed_member_layouts"].items()}
        self.xfer_handshake_metadata = RowPayload(
            compatibility_hash=self.compat_hash,
            agent_metadata_bytes=msgspec.msgpack.encode(mine),
            blhnc=facts(self.vllm_config, self._TRANSFER_MODE, draft_ranks) | {KEY: told(self.vllm_config)},
        )

    def _count_rows(self, kv_caches: dict[str, torch.Tensor]) -> None:
        mine = self._own_metadata()
        moved = sum(mine["block_lens"])
        pages = sum(spec.page_size_bytes for name, spec in self._layer_specs.items() if name in kv_caches)
        self._row_padding = moved - pages
        self.xfer_stats.record_rows(
            mine["kv_cache_layout"], regions=self.num_regions, nbytes=moved, padding=self._row_padding
        )
