"""What this plugin replaces in stock packages: one value that NIXL's Python package gives no argument for."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from stockpatch.register import Patch, Register
from vllm_blhnc.stock import NIXL

__all__ = ["REGISTER", "set_progress_delay"]

_delay_us: int | None = None


def set_progress_delay(microseconds: int) -> None:
    """Let NIXL agents made from now on sleep this long between polls of their progress thread."""
    global _delay_us
    _delay_us = microseconds
    REGISTER.apply(["nixl-progress-delay"])


def _with_delay(original: Any) -> Any:
    @functools.wraps(original, updated=())
    def agent(name: str, config: Any) -> Any:
        if _delay_us is not None:
            config.pthrDelay = _delay_us
        return original(name, config)

    return agent


def _delay_is_settable() -> bool:
    parameters = inspect.signature(importlib.import_module("nixl._api").nixl_agent_config).parameters
    return any("delay" in name.lower() for name in parameters)


REGISTER = Register(
    "vllm_blhnc",
    (
        Patch(
            id="nixl-progress-delay",
            target="nixl._bindings:nixlAgent",
            window=NIXL,
            why="NIXL's Python agent sets the progress thread's poll delay to 0 and takes no argument for it, "
            "so every worker burns one core; with few cores the engine starves behind it. The replacement sets "
            "the delay of the deployment's progress_delay_us before the agent is made.",
            upstream="https://github.com/ai-dynamo/nixl/blob/main/src/api/python/_api.py",
            remove_when="nixl_agent_config takes the progress thread's delay.",
            expects=None,
            replace=_with_delay,
            obsolete=_delay_is_settable,
        ),
    ),
)
