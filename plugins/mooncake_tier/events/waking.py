"""Wakes this process's engine, so that a router hears now, and not with the next request, what a thread found out.

vLLM publishes events at the end of a step, and an engine without requests waits for its input queue. Loads no vLLM.
"""

from __future__ import annotations

from typing import Any

from mooncake_tier.vllm_stock import wake_message

__all__ = ["remember", "wake"]

_queue: Any = None


def remember(queue: Any) -> None:
    """This is where the engine of this process waits for work."""
    global _queue
    _queue = queue


def wake() -> None:
    """Let the engine look whether there is work; nothing where it runs without a loop of its own. From any thread."""
    if _queue is not None:
        _queue.put_nowait(wake_message())
