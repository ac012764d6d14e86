"""``secondary_tiers`` of vLLM's tiering offload: chunks of host memory in the node's Mooncake store.

Every method runs in the scheduler and waits for nothing. One chunk, with the pages of all caches and workers, is one
object. Made under `mooncake_tier.offload.PrefetchOffloadingConnector`, whose workers tell it the namespace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

from mooncake_tier.vllm_stock import VLLM

VLLM.require()  # Before the imports below: on a release that moved them, the reader needs to see why.

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats  # noqa: E402
from vllm.v1.kv_offload import base as stock  # noqa: E402
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob  # noqa: E402

from mooncake_tier.errors import SettingRefused  # noqa: E402
from mooncake_tier.offloading.chunks import ChunkPool  # noqa: E402
from mooncake_tier.offloading.figures import TIER_FIGURES, Changes  # noqa: E402
from mooncake_tier.offloading.settings import KEY, OffloadSettings  # noqa: E402
from mooncake_tier.patches import REGISTER  # noqa: E402

__all__ = ["UNDER_CONNECTOR", "MooncakeTier"]

UNDER_CONNECTOR: ContextVar[bool] = ContextVar("under_connector", default=False)
"""Whether the connector that is being made will tell the namespace."""

_KINDS = {"counter": stock.OffloadingCounterMetadata, "gauge": stock.OffloadingGaugeMetadata}
_PREFIX = "vllm:"
"""vLLM drops what is called so before it makes another engine's metrics."""
_RESULTS = {True: stock.LookupResult.HIT, False: stock.LookupResult.MISS, None: stock.LookupResult.RETRY}


class MooncakeTier(SecondaryTierManager):
    """Its settings stand under ``kv_connector_extra_config.mooncake_tier``; the entry of the tier has none."""

    medium: ClassVar[stock.Medium | None] = stock.Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **unknown: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if not UNDER_CONNECTOR.get():
            raise SettingRefused(
                "MooncakeTier under another connector than its own",
                "stock's tells a tier neither weights nor caches, so keys could not tell blocks apart",
                '"kv_connector": "PrefetchOffloadingConnector", "kv_connector_module_path": "mooncake_tier.offload"',
                "Set both in --kv-transfer-config; prefetching can be turned off",
            )
        if unknown:
            raise SettingRefused(
                f"secondary_tiers has {sorted(unknown)} beside type={tier_type!r}",
                "it would be left out",
                "type, module_path and backpressure",
                f"Set it under kv_connector_extra_config.{KEY}",
            )
        self.settings = OffloadSettings.of(offloading_spec.extra_config)
        events = offloading_spec.kv_events_config
        if events.enable_kv_cache_events and events.self_describing_kv_events and not self.settings.metrics:
            raise SettingRefused(
                f"{KEY}.metrics is not set, and KV events are on",
                "Mooncake tells nobody what it evicts, so a router would send requests after blocks that are gone",
                "host:port of the master's metrics",
                "Set it, or leave out self_describing_kv_events",
            )
        self.locality = stock.Locality.LOCAL if self.settings.medium == "CPU" else stock.Locality.REMOTE
        self.pool = ChunkPool(
            self.settings,
            ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view)),
            primary_kv_view.nbytes,
            self.block_size_bytes,
            events.enable_kv_cache_events,
        )
        if self.pool.evictions is not None:
            REGISTER.apply()
        self._announced: dict[str, stock.OffloadKey] = {}
        self._events: list[stock.OffloadingEvent] = []
        self._jobs: dict[int, dict[str, stock.OffloadKey]] = {}
        self._changes = Changes()
        self.not_loaded: list[stock.OffloadKey] = []
        """Keys whose load failed, for whoever takes them out."""

    def name(self, key: stock.OffloadKey) -> str:
        """The chunk's key in the store; the namespace must be known."""
        return self.pool.name(stock.get_offload_group_idx(key), stock.get_offload_block_hash(key))

    def lookup(self, key: stock.OffloadKey, req_context: stock.ReqContext) -> stock.LookupResult:
        """HIT if it can be loaded, RETRY while that is not known, MISS otherwise and for whatever failed."""
        if not self.pool.told:
            return stock.LookupResult.RETRY
        return _RESULTS[self.pool.lookup(self.name(key), req_context.req_id)]

    def submit_lookups(self) -> None:
        """Send the lookups of this step now, and not at its end."""
        self.pool.submit()

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Begin to read chunks into their slots, which are written only if all of a chunk is proven."""
        self.pool.load(job_metadata.job_id, job_metadata.req_context.req_id, self._chunks(job_metadata))

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Begin to write chunks from their slots, which stay pinned until nothing reads them any more."""
        self.pool.store(job_metadata.job_id, job_metadata.req_context.req_id, self._chunks(job_metadata))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs whose memory is free, with the keys of loads that worked."""
        results = []
        for one in self.pool.settle():
            named = self._jobs.pop(one.job)
            self._announce(named[name] for name in one.ok)
            self.not_loaded += [named[name] for name in (*one.failed, *one.given_up) if one.load]
            results.append(
                JobResult(
                    one.job,
                    not (one.failed or one.given_up),
                    [named[name] for name in one.ok] if one.load else None,
                    one.took_s,
                    one.nbytes,
                )
            )
        return results

    def cancel(self, request: str) -> None:
        """Give up loads of a request that have not begun; chunks that another one wants are asked for anew."""
        self.pool.jobs.cancel(request)

    def has_pending_work(self) -> bool:
        """Whether the engine must step although nothing is scheduled: until the workers told the namespace, while jobs
        run, and while events wait."""
        gone = self.pool.evictions is not None and self.pool.evictions.pending
        return not self.pool.told or bool(self.pool.jobs) or gone or bool(self._events)

    def take_events(self) -> Iterable[stock.OffloadingEvent]:
        """What was stored, and what was found to be gone."""
        taken, self._events = self._events, []
        if self.pool.evictions is not None and (gone := self.pool.evictions.take()):
            self.pool.counts.add("removed_chunks", len(gone))
            taken.append(self._event([self._announced.pop(name) for name in gone], removed=True))
        return taken

    def touch(self, keys: Collection[stock.OffloadKey], req_context: stock.ReqContext) -> None:
        """These are in use on the GPU: keep them in the store for another lease."""
        if self.pool.told:
            self.pool.touch([self.name(key) for key in keys])

    def on_new_request(self, req_context: stock.ReqContext) -> stock.RequestOffloadingContext:
        """Where only what is read again is written, a later request must be offered what an earlier one had."""
        every = self.settings.write == "reused"
        policy = stock.OffloadPolicy.REQUEST_LEVEL if every else stock.OffloadPolicy.CHUNK_LEVEL
        return stock.RequestOffloadingContext(policy)

    def on_request_finished(self, req_context: stock.ReqContext) -> None:
        self.pool.forget(req_context.req_id)

    def on_schedule_end(self, context: stock.ScheduleEndContext) -> None:
        self.pool.submit()

    def drain_jobs(self) -> None:
        """Wait until nothing touches host memory. vLLM calls this for a reset alone."""
        self.pool.jobs.drain()

    def forget_told(self) -> None:
        """The router forgot everything, and is told again of what is stored or read again."""
        if self.pool.evictions is not None:
            for name in self.pool.evictions.forget():
                del self._announced[name]
            self._events.clear()

    def rotate(self) -> None:
        """The cache was reset: other weights may be served from now on, so another namespace is used. The connector
        tells the router that everything is gone."""
        self.forget_told()
        self.pool.rotate()

    def shutdown(self) -> None:
        if not self.pool.close():
            raise RuntimeError("mooncake_tier: Mooncake still uses host memory of this engine; it stays mapped.")

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, stock.OffloadingMetricMetadata]:
        """The figures of `mooncake_tier.offloading.figures`, by vLLM's own metrics."""
        return {
            _PREFIX + one.name: _KINDS[one.kind](one.about, (one.label,) if one.label else ()) for one in TIER_FIGURES
        }

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What changed since the last call."""
        stats = OffloadingConnectorStats()
        for figure, label, value in self._changes.since_last(self.pool.snapshot()):
            change = stats.set_gauge if figure.kind == "gauge" else stats.increase_counter
            change(_PREFIX + figure.name, value, label)
        return None if stats.is_empty() else stats

    def _chunks(self, job: TransferJob) -> Mapping[str, int]:
        named = self._jobs[job.job_id] = {self.name(key): key for key in job.keys}
        return dict(zip(named, map(int, job.chunk_ids), strict=True))

    def _announce(self, stored: Iterable[stock.OffloadKey]) -> None:
        named = {self.name(key): key for key in stored}
        if new := self.pool.announce(named):
            self._announced |= {name: named[name] for name in new}
            self._events.append(self._event([named[name] for name in new], removed=False))

    def _event(self, keys: list[stock.OffloadKey], removed: bool) -> stock.OffloadingEvent:
        return stock.OffloadingEvent(
            keys, stock.Medium.CPU, removed, self.locality, ownership=self.tier_type, removal_expected=not removed
        )
