"""The two halves of the store connector with all that they need from vLLM's configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from mooncake_tier import keys
from mooncake_tier.client.master import Master
from mooncake_tier.client.shared_client import SharedClient
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import SettingRefused
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.events.store_events import StoreEvents
from mooncake_tier.events.waking import wake
from mooncake_tier.identity.deployment import namespace_fields
from mooncake_tier.identity.reports import write_report
from mooncake_tier.patches import REGISTER
from mooncake_tier.store.blocks import BlockMemory, pages_of
from mooncake_tier.store.messages import StoreOrders, StoreReport
from mooncake_tier.store.scheduler import StoreScheduler
from mooncake_tier.store.settings import StoreSettings, store_settings
from mooncake_tier.store.worker import StoreWorker
from mooncake_tier.vllm_stock import cache_was_reset

__all__ = ["SchedulerPart", "WorkerPart"]

_log = logging.getLogger("vllm.mooncake_tier")


class WorkerPart:
    """A worker: its namespace, its client, its memory."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        parallel = vllm_config.parallel_config
        self._on_cpu = vllm_config.device_config.device_type == "cpu"
        settings = _settings(vllm_config)
        fields = namespace_fields(vllm_config, kv_cache_config, way="store", identity=settings.identity)
        fields["checksum"] = settings.options.checksum
        self._caches, self._kv_cache_config = fields["caches"], kv_cache_config
        namespace = keys.namespace(**fields)
        if settings.report_dir is not None:
            write_report(settings.report_dir, f"worker-{os.uname().nodename}-{os.getpid()}", fields)
        self.shared = SharedClient.of(settings.address, settings.options)
        # MLA rows are the same on every rank of tensor parallelism, so each stores a share and loads all.
        self.worker = StoreWorker(
            self.shared.named(namespace),
            parallel.rank % parallel.tensor_parallel_size,
            parallel.tensor_parallel_size,
            (lambda: None) if self._on_cpu else _device_event,
        )
        _log.info("mooncake_tier: namespace %s, checksum %s, %s", namespace, settings.options.checksum, settings)

    def register(self, kv_caches: dict[str, Any]) -> None:
        """Make vLLM's caches known to the transport."""
        memory = BlockMemory(pages_of(self._kv_cache_config, self._caches, kv_caches))
        storages = [tensor.untyped_storage() for tensor in kv_caches.values()]
        self.worker.register(memory, {storage.data_ptr(): storage.nbytes() for storage in storages})

    def close(self) -> None:
        """Leave the store."""
        self.shared.release()


class SchedulerPart:
    """The scheduler: which process's client it asks, and what it may do in this role."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        settings = _settings(vllm_config)
        transfer, events = vllm_config.kv_transfer_config, vllm_config.kv_events_config
        told = bool(settings.events and events is not None and events.enable_kv_cache_events)
        if told and not settings.metrics:
            raise SettingRefused(
                "KV events are enabled, and mooncake_tier.metrics is not set",
                "the master tells nobody what it evicts, so its list of keys must be read",
                "host:port of the master's metrics, as mooncake-tier serve prints it",
                'Set it, or "events": false to tell the router nothing of the store',
            )
        if told:
            REGISTER.apply()
        self.shared = SharedClient.of(settings.address, settings.options)
        self.scheduler = StoreScheduler(
            client=lambda: self.shared.client,
            block_size=vllm_config.cache_config.block_size,
            workers=vllm_config.parallel_config.world_size,
            most_pinned=max(1, int(settings.pinned_share * kv_cache_config.num_blocks)),
            loads=transfer.is_kv_consumer,
            saves=transfer.is_kv_producer,
            save_decode=settings.save_decode,
            events=self._events(vllm_config, kv_cache_config, settings) if told else None,
        )

    def bind(self, kv_cache_manager: Any) -> None:
        """Take over what vLLM has settled by now."""
        self.scheduler.pool = kv_cache_manager.block_pool
        self.scheduler.drop_last = bool(kv_cache_manager.use_eagle)

    def orders(self, output: Any) -> StoreOrders:
        """This step's orders, after whatever happened between two steps."""
        if self.scheduler.events is not None and cache_was_reset(self.scheduler.pool):
            self.scheduler.events.forget()
        return self.scheduler.orders(output)

    def reported(self, report: StoreReport | None, received: set[str]) -> None:
        """What the workers say; with the first report comes the namespace."""
        if report is not None:
            self.shared.named(report.namespace)
        self.scheduler.reported(report, received)

    def reset(self) -> bool:
        """Remove this deployment's blocks from the store; False unless all of them are gone."""
        client, scheduler = self.shared.client, self.scheduler
        if client is None:
            return True
        if scheduler.storing:
            _log.warning("mooncake_tier: reset while blocks are being stored, which would stay; pause, and repeat it")
            return False
        scheduler.forget()
        removed = client.clear()
        if removed is None:
            _log.warning("mooncake_tier: the store did not answer, so its blocks may be found again; repeat the reset")
            return False
        if scheduler.events is not None:
            scheduler.events.look()
        _log.info("mooncake_tier: reset removed %d blocks of %s and no others", removed, client.namespace)
        return True

    def close(self) -> None:
        """Leave the store."""
        if self.scheduler.events is not None:
            self.scheduler.events.close()
        self.shared.release()

    def _events(self, vllm_config: Any, kv_cache_config: Any, settings: StoreSettings) -> StoreEvents:
        return StoreEvents(
            Evictions(Master(*settings.metrics_address), settings.poll_s, wake),
            _prefix_of(lambda: self.shared.client),
            vllm_config.cache_config.block_size,
            settings.medium,
            get_kv_cache_spec_kind(kv_cache_config.kv_cache_groups[0].kv_cache_spec).value,
            getattr(vllm_config, "num_hash_lookahead_tokens", 0),
        )


def _settings(vllm_config: Any) -> StoreSettings:
    on_cpu = vllm_config.device_config.device_type == "cpu"
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    settings = store_settings(extra, checksum="xxh3" if on_cpu else "none")
    if settings.options.staging_bytes and not on_cpu:
        raise SettingRefused(
            f"staging_bytes={settings.options.staging_bytes} on {vllm_config.device_config.device_type}",
            "staged loads are copied by the CPU",
            "0, or caches in host memory",
            "Drop it",
        )
    return settings


def _prefix_of(client: Callable[[], TierClient | None]) -> Callable[[], str]:
    def prefix() -> str:
        named = client()
        assert named is not None, "blocks are stored by workers that have told the namespace"
        return keys.key_prefix(named.namespace)

    return prefix


def _device_event() -> Any:
    """An event behind all that the device was asked to do so far."""
    import torch

    event = torch.cuda.Event()
    event.record()
    return event
