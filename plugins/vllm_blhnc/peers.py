"""Which peers a worker reads from or writes to: those whose deployment agrees with its own."""

from __future__ import annotations

from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata, NixlHandshakePayload

from vllm_blhnc import peer_facts
from vllm_blhnc.checks import FACTS, MUST_MATCH, HandshakeMismatch, comparable, peer_differences
from vllm_blhnc.handshake import ask, described
from vllm_blhnc.metrics import BlockRowStats
from vllm_blhnc.settings import Settings

__all__ = ["CheckedPeers"]


class CheckedPeers:
    """Mixin in front of a stock NIXL worker class: every way to a peer leads past a comparison.

    With layout "stock" only the layout is compared; what else may differ is stock's business, which supports
    some pairs that differ. Where stock refuses a pair, this says in which field. Facts of other packages are compared
    with every peer that runs this plugin.
    """

    # Supplied by the stock worker class, and by the mixin of this plugin in front of it.
    _settings: Settings
    compat_hash: str
    enforce_compat_hash: bool
    xfer_handshake_metadata: NixlHandshakePayload
    xfer_stats: BlockRowStats

    def _nixl_handshake(self, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        """Ask the peer for its facts, and go on as stock if they agree."""
        peer = ask(host, port)
        seen = described(peer)
        refused_by_stock = self.enforce_compat_hash and peer.compatibility_hash != self.compat_hash
        fields = comparable(seen) if self._settings.block_rows or refused_by_stock else ("kv_cache_layout",)
        mine = described(self.xfer_handshake_metadata)
        found = peer_differences(mine, seen, fields)
        if next(iter(FACTS)) in seen:
            found += peer_facts.differences(mine, seen)
        if refused_by_stock and not found:
            found = [
                f"vLLM's compatibility hash is {self.compat_hash} here and {peer.compatibility_hash} at the peer, "
                f"though {', '.join(FACTS)} and the cache's shape agree: make the revision and "
                "the parallel drafting of the draft model in --speculative-config equal"
            ]
        self._refuse(f"{host}:{port}", found)
        return super()._nixl_handshake(host, port, *args, **kwargs)  # type: ignore[misc]

    def add_remote_agent(self, nixl_agent_meta: NixlAgentMetadata, *args: Any, **kwargs: Any) -> str:
        """Accept a peer only if its rows hold the same pages in the same places; each rank of it is checked."""
        self._compare(nixl_agent_meta)
        return super().add_remote_agent(nixl_agent_meta, *args, **kwargs)  # type: ignore[misc]

    def _add_notif_only_remote_agent(self, metadata: NixlAgentMetadata, *args: Any, **kwargs: Any) -> str:
        """The same check where decode waits for prefill's writes; prefill's refusal would not reach it."""
        self._compare(metadata)
        return super()._add_notif_only_remote_agent(metadata, *args, **kwargs)  # type: ignore[misc]

    def _compare(self, peer: NixlAgentMetadata) -> None:
        fields = MUST_MATCH if self._settings.block_rows else ("kv_cache_layout",)
        as_sent = msgspec.msgpack.decode(msgspec.msgpack.encode(peer))
        self._refuse(peer.engine_id, peer_differences(self._own_metadata(), as_sent, fields))

    def _refuse(self, peer: str, differences: list[str]) -> None:
        if differences:
            self.xfer_stats.record_refused_peer()
            raise HandshakeMismatch(
                f"prefill and decode do not agree, nothing is read from peer {peer}: {'; '.join(differences)}."
            )

    def _own_metadata(self) -> dict[str, Any]:
        return msgspec.msgpack.decode(self.xfer_handshake_metadata.agent_metadata_bytes)
