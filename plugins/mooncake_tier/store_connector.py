"""``kv_connector_module_path``: a KV connector that keeps blocks in Mooncake's DRAM, for GPU and CPU workers.

Chosen instead of vLLM's MooncakeStoreConnector, alone or beside NIXL inside MultiConnector. It derives from vLLM's
connector interface and not from that class, whose faults lie in the middle of its methods.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from mooncake_tier.vllm_stock import VLLM, host_source

VLLM.require()  # Before the imports below: on a release that moved them, the reader needs to see why.

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from mooncake_tier.store.checks import refuse_what_cannot_work  # noqa: E402
from mooncake_tier.store.messages import StoreOrders, StoreReport  # noqa: E402
from mooncake_tier.store.parts import SchedulerPart, WorkerPart  # noqa: E402
from mooncake_tier.store.stats import StoreMetrics, StoreStats  # noqa: E402

__all__ = ["TierStoreConnector"]

_log = logging.getLogger("vllm.mooncake_tier")


class TierStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """Blocks of prompts and answers in Mooncake, found again by any engine of the same deployment."""

    _cache_hit_source = host_source()

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        refuse_what_cannot_work(vllm_config, kv_cache_config)
        self._worker = WorkerPart(vllm_config, kv_cache_config) if role is KVConnectorRole.WORKER else None
        self._scheduler = SchedulerPart(vllm_config, kv_cache_config) if self._worker is None else None

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not stored is only a miss."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Memory that the transport knows must stay where it is."""
        return False

    def shutdown(self) -> None:
        """End this part's use of the store."""
        (self._worker or self._part).close()

    # The scheduler's side

    @property
    def _part(self) -> SchedulerPart:
        assert self._scheduler is not None, "called in a worker"
        return self._scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Called once, before the first request."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._part.bind(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        """Look its blocks up while it waits."""
        self._part.scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded, always while the engine goes on; None while the lookup is under way."""
        found = self._part.scheduler.matched(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order a load if this connector was chosen for it."""
        if num_external_tokens:
            self._part.scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StoreOrders:
        """This step's loads and stores."""
        return self._part.orders(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers did since the last step."""
        report = connector_output.kv_connector_worker_meta
        self._part.reported(
            report if isinstance(report, StoreReport) else None, connector_output.finished_recving or set()
        )

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks that are being stored have references of their own, so the request's can go."""
        self._part.scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same."""
        return self.request_finished(request, block_ids[0])

    def has_pending_push_work(self) -> bool:
        """Whether a step is needed although nothing is to be computed."""
        return self._part.scheduler.pending

    def take_events(self) -> Iterable[Any]:
        """KV events of the store's blocks since the last call."""
        events = self._part.scheduler.events
        return events.take() if events is not None else ()

    def reset_cache(self) -> bool | None:
        """Remove the blocks of this deployment, and no others'; False if that is not sure."""
        return None if self._scheduler is None else self._scheduler.reset()

    # The worker's side

    @property
    def _mover(self) -> WorkerPart:
        assert self._worker is not None, "called in the scheduler"
        return self._worker

    def _orders(self) -> StoreOrders:
        orders = self._get_connector_metadata()
        assert isinstance(orders, StoreOrders)
        return orders

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Called once with every layer's cache."""
        self._mover.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin this step's loads."""
        self._mover.worker.begin_loads(self._orders())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is stored layer by layer."""

    def wait_for_save(self) -> None:
        """Begin this step's stores; waits for nothing, because the scheduler has pinned the blocks."""
        self._mover.worker.begin_stores(self._orders())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose loads are over; those that failed are among them."""
        return None, self._mover.worker.loaded(self._orders()) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Every block that was to be loaded and was not."""
        return self._mover.worker.take_invalid()

    def build_connector_worker_meta(self) -> StoreReport | None:
        """What the scheduler's side must know."""
        return self._mover.worker.take_report()

    def get_kv_connector_stats(self) -> StoreStats | None:
        """What was counted since the last call in this process."""
        figures = (self._worker or self._part).shared.figures()
        return StoreStats.of(figures) if figures else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StoreStats:
        """Statistics as they arrive in another process."""
        return StoreStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> StoreMetrics:
        """The figures at ``/metrics``."""
        return StoreMetrics(*arguments)


# The messages are plain data, so that both sides can be tested without vLLM.
KVConnectorMetadata.register(StoreOrders)
KVConnectorWorkerMetadata.register(StoreReport)

# MultiConnector asks for the class that made a statistic by its name, and knows only registered ones.
if TierStoreConnector.__name__ not in KVConnectorFactory._registry:
    KVConnectorFactory.register_connector(TierStoreConnector.__name__, __name__, TierStoreConnector.__name__)
