"""``kv_connector_module_path``: stock's offloading connector whose chunks are in host memory before a request's turn.

vLLM's own connector and manager do the rest; see `mooncake_tier.tier` for what is stored and
`mooncake_tier.offloading.prefetch` for what is loaded when.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mooncake_tier.vllm_stock import VLLM, cache_was_reset

VLLM.require()  # Before the imports below: on a release that moved them, the reader needs to see why.

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector  # noqa: E402

from mooncake_tier.errors import SettingRefused  # noqa: E402
from mooncake_tier.events.residency import Residency  # noqa: E402
from mooncake_tier.identity.deployment import namespace_fields  # noqa: E402
from mooncake_tier.identity.reports import write_report  # noqa: E402
from mooncake_tier.offloading.prefetch import Prefetcher  # noqa: E402
from mooncake_tier.offloading.settings import KEY, OffloadSettings  # noqa: E402
from mooncake_tier.offloading.told import TellingMetadata, agreed  # noqa: E402
from mooncake_tier.offloading.waiting import WaitingRequests  # noqa: E402
from mooncake_tier.tier import UNDER_CONNECTOR, MooncakeTier  # noqa: E402

__all__ = ["PrefetchOffloadingConnector"]

#: Seconds after which waiting requests are looked at although nothing was heard from the store.
_LOOK_AGAIN_S = 0.25


class PrefetchOffloadingConnector(OffloadingConnector):
    """`OffloadingConnector` with one `MooncakeTier`, which it tells the namespace, the requests and the sessions."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._settings = OffloadSettings.of(extra)
        under = UNDER_CONNECTOR.set(True)
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            UNDER_CONNECTOR.reset(under)
        self._fields: dict[str, Any] | None = None
        if self.connector_scheduler is not None:
            self._workers = vllm_config.parallel_config.world_size
            self._tier = _only_tier(self.connector_scheduler.manager)
            self._requests = WaitingRequests(self.connector_scheduler, self._tier.name)
            self._prefetcher = Prefetcher(
                self._requests,
                self._tier.block_size_bytes,
                self._settings.prefetch_bytes or int(extra["cpu_bytes_to_use"]) // 2,
                self._settings.loading_bytes,
                lambda use, chunks: self._tier.pool.counts.add("prefetched_chunks", chunks, use),
            )
            self._residency = Residency(
                BlockStored, BlockRemoved, AllBlocksCleared, self._tier.tier_type, self._settings.medium
            )
            self._unknown: dict[str, str | None] = {}
            """Requests that came before the namespace was known, with their sessions."""
            self._heard, self._look_at = -1, 0.0

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Any: with block-outermost layouts a block is one copy. So it can stand beside connectors that need one."""
        return None

    # In the workers

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Called once the model is loaded: what a block is can be told now. Raises `KeyRefused` if it cannot."""
        super().register_kv_caches(kv_caches)
        assert self.connector_worker is not None
        self._fields = namespace_fields(
            self._vllm_config,
            self._kv_cache_config,
            way="offload",
            chunk_blocks=self.connector_worker.spec.blocks_per_chunk,
            identity=self._settings.identity,
        )
        if self._settings.report_dir:
            engine, rank = self._vllm_config.kv_transfer_config.engine_id, self._vllm_config.parallel_config.rank
            write_report(Path(self._settings.report_dir), f"{engine}-{rank}", self._fields)

    def build_connector_worker_meta(self) -> Any:
        """Stock's, and at the first step the fields of the namespace."""
        meta = super().build_connector_worker_meta()
        if self._fields is None:
            return meta
        fields, self._fields = self._fields, None
        return TellingMetadata.of(meta, fields)

    # In the scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._requests.block_pool = kv_cache_manager.block_pool

    def update_connector_output(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, TellingMetadata) and not self._tier.pool.told:
            self._tier.pool.open(agreed(meta.told, self._workers))
            for request, session in self._unknown.items():
                self._tier.pool.begin(request, self._requests.names(request), session)
            self._unknown.clear()
        super().update_connector_output(connector_output)

    def on_new_request(self, request: Any) -> None:
        """A request is queued: ask for its chunks at once."""
        super().on_new_request(request)
        name = request.request_id
        if self._tier.pool.told:
            self._tier.pool.begin(name, self._requests.names(name), request.session_id)
        else:
            self._unknown[name] = request.session_id
        if self._settings.prefetch and not request.skip_reading_prefix_cache and not _comes_from_a_peer(request):
            by_priority = self._vllm_config.scheduler_config.policy == "priority"
            self._prefetcher.add(name, (request.priority, request.arrival_time) if by_priority else ())
            self._pump()

    def _max_loadable_tokens(self, request: Any, num_computed_tokens: int) -> int | None:
        """Nothing for a request whose blocks another connector is about to bring."""
        if _comes_from_a_peer(request):
            return 0
        return super()._max_loadable_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """The end of a step, and also of one in which running requests used every token."""
        self._prefetcher.begun(one.req_id for one in scheduler_output.scheduled_new_reqs)
        pool = self._tier.pool
        if len(self._prefetcher) and (pool.heard != self._heard or time.monotonic() >= self._look_at):
            self._pump()
        if self._tier.pool.evictions is not None and cache_was_reset(self._requests.block_pool):
            self._tier.forget_told()
            self._residency.forget()
        failed, self._tier.not_loaded = self._tier.not_loaded, []
        self._requests.not_loaded(failed)
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._end(request)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._end(request)
        return super().request_finished_all_groups(request, block_ids)

    def take_events(self) -> Iterator[Any]:
        """Stock's, merged so that a block is stored once and removed once."""
        return self._residency.merged(super().take_events())

    def reset_cache(self) -> bool | None:
        """Forget all blocks, because the weights changed: those in the store are left to who has those weights."""
        done = super().reset_cache()
        self._tier.rotate()
        self._residency.withdraw()
        return done

    def _pump(self) -> None:
        self._heard, self._look_at = self._tier.pool.heard, time.monotonic() + _LOOK_AGAIN_S
        self._prefetcher.pump()
        self._tier.submit_lookups()

    def _end(self, request: Any) -> None:
        name = request.request_id
        if self._prefetcher.dropped(name):
            self._tier.pool.counts.add("cancelled_requests")
            self._tier.cancel(name)
        if self._unknown.pop(name, None) is None and self._tier.pool.told:
            ended = (request.kv_transfer_params or {}).get("session_end") is True
            self._tier.pool.finish(name, self._requests.names(name), ended)


def _comes_from_a_peer(request: Any) -> bool:
    """Whether a prefill worker has the blocks, and NIXL, which clears the mark, has not yet asked for them."""
    return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))


def _only_tier(manager: Any) -> MooncakeTier:
    """The tier that this connector serves; raises `SettingRefused` if there is none, or another one beside it."""
    tiers = list(getattr(manager, "secondary_tiers", ()))
    if len(tiers) == 1 and isinstance(tiers[0], MooncakeTier):
        return tiers[0]
    raise SettingRefused(
        f"secondary tiers {[type(one).__name__ for one in tiers]}",
        "this connector loads what the Mooncake tier has",
        "one, MooncakeTier",
        'Set "spec_name": "TieringOffloadingSpec" and "secondary_tiers": [{"type": "MooncakeTier", "module_path": '
        f'"mooncake_tier.tier"}}] beside kv_connector_extra_config.{KEY}',
    )


# MultiConnector looks for the class of a child's statistics among the registered connectors, by its name.
if PrefetchOffloadingConnector.__name__ not in KVConnectorFactory._registry:
    _name = PrefetchOffloadingConnector.__name__
    KVConnectorFactory.register_connector(_name, __name__, _name)
