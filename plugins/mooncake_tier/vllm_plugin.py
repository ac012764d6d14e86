"""Entry point ``vllm.general_plugins``: the connectors' names in every process of vLLM.

A connector that is named with a module path is found by it, except inside of a `MultiConnector`: the process that logs
looks its children's classes up by name, and ends if one is unknown. Nothing is imported before a name is asked for.
"""

from __future__ import annotations

from stockpatch.versions import UnsupportedVersion

__all__ = ["CONNECTORS", "register"]

CONNECTORS = {
    "PrefetchOffloadingConnector": "mooncake_tier.offload",
    "TierStoreConnector": "mooncake_tier.store_connector",
}
"""Modules by the connectors' names."""


def register() -> None:
    """Make the names known; harmless when repeated. On a release that was not tested nothing is done: there the
    connectors refuse by themselves, where one is asked for."""
    from mooncake_tier.vllm_stock import VLLM

    try:
        VLLM.require()
    except UnsupportedVersion:
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name, module in CONNECTORS.items():
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, module, name)
