"""``kv_connector_module_path``: stock NIXL connectors, under their stock names, that ask for block rows."""

from __future__ import annotations

import logging
from typing import Any

from vllm_blhnc import alignment, patches
from vllm_blhnc.stock import VLLM

VLLM.require()  # Before the imports below: on a release that moved them, the reader needs to see why.

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as stock  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker  # noqa: E402

from vllm_blhnc.allocation import hand_out_runs, refuse_hisparse  # noqa: E402
from vllm_blhnc.handoffs import CheckedHandoffs  # noqa: E402
from vllm_blhnc.metrics import BlockRowMetrics, BlockRowStats  # noqa: E402
from vllm_blhnc.push import NamedMatches, NamedRegistrations  # noqa: E402
from vllm_blhnc.worker import BlockRowWorker, settings_of  # noqa: E402

__all__ = ["NixlConnector", "NixlPullConnector", "NixlPushConnector"]

_log = logging.getLogger("vllm.vllm_blhnc")


class _PullWorker(CheckedHandoffs, BlockRowWorker, NixlPullConnectorWorker):
    pass


class _PushWorker(NamedMatches, BlockRowWorker, NixlPushConnectorWorker):
    pass


class _BlockRows:
    """What both connectors do differently from stock: they ask for BLHNC and bring their own worker."""

    _worker_class: type

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        settings = settings_of(vllm_config)
        _log.info("vllm_blhnc: %s", settings)
        if settings.progress_delay_us is not None:
            patches.set_progress_delay(settings.progress_delay_us)
        if role is not KVConnectorRole.WORKER:
            super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
            return
        # Stock makes its worker, and with it a NIXL agent, inside the connector's own constructor. Go past
        # that one to the base class, so that the only agent made is the row worker's.
        stock.NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        self.connector_worker = self._worker_class(vllm_config, self.engine_id, kv_cache_config)  # type: ignore[attr-defined]

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Called once with the scheduler's cache manager, before the first request."""
        super().bind_kv_cache_manager(kv_cache_manager)  # type: ignore[misc]
        settings = settings_of(self._vllm_config)  # type: ignore[attr-defined]
        if settings.block_allocation == "runs":
            refuse_hisparse(self._vllm_config)  # type: ignore[attr-defined]
            patches.follow_the_requests_blocks()
            hand_out_runs(kv_cache_manager.block_pool, settings.eviction_window)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """BLHNC, or with layout "stock" what stock asks for."""
        settings = settings_of(vllm_config)
        # The engine core calls this between collecting the cache specifications and planning the cache.
        alignment.ask(vllm_config.cache_config, settings.row_alignment_tokens)
        if settings.block_rows:
            return "BLHNC"
        return super().get_required_kvcache_layout(vllm_config)  # type: ignore[misc]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> BlockRowStats:
        """Statistics as a worker sent them, or empty ones."""
        return BlockRowStats() if data is None else BlockRowStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> BlockRowMetrics:
        """What the process that answers ``/metrics`` shows of them."""
        return BlockRowMetrics(*arguments)


class NixlPullConnector(_BlockRows, stock.NixlPullConnector):
    """Decode reads from prefill."""

    _worker_class = _PullWorker


class NixlPushConnector(_BlockRows, stock.NixlPushConnector):
    """Prefill writes to decode."""

    _worker_class = _PushWorker

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            self.connector_scheduler = NamedRegistrations(vllm_config, self.engine_id, kv_cache_config)


# vLLM takes the class by the configured name, and Dynamo refuses names it does not know.
NixlConnector = NixlPullConnector
