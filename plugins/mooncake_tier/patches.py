"""What this plugin replaces in vLLM, only where a router is told of the store's blocks."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from mooncake_tier.events import waking
from mooncake_tier.vllm_stock import VLLM
from stockpatch.register import Patch, Register

__all__ = ["REGISTER"]


def _with_remembered_queue(original: Any) -> Any:
    @functools.wraps(original)
    def _process_input_queue(self: Any) -> Any:
        waking.remember(self.input_queue)
        return original(self)

    return _process_input_queue


def _a_connector_can_wake() -> bool:
    base = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base").KVConnectorBase_V1
    return any("wake" in name for name in dir(base))


REGISTER = Register(
    "mooncake_tier",
    (
        Patch(
            id="removals-wake-the-engine",
            target="vllm.v1.engine.core:EngineCoreProc._process_input_queue",
            window=VLLM,
            why="vLLM publishes KV events at the end of a step, and a connector has no means to ask an idle engine for "
            "one. So a router would send requests after blocks that Mooncake has evicted, until the engine got a "
            "request anyway. The replacement remembers the queue for which the engine waits, so that the thread that "
            "finds evictions can put vLLM's own wake-up message into it.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/engine/core.py",
            remove_when="a connector can ask vLLM for a step.",
            expects=("self",),
            replace=_with_remembered_queue,
            obsolete=_a_connector_can_wake,
        ),
    ),
)
