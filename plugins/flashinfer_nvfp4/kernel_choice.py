"""The kernel that a layer decodes with, from vLLM's configuration and this machine."""

from __future__ import annotations

import functools
import logging

from vllm.config import get_current_vllm_config

from flashinfer_nvfp4.device import capability
from flashinfer_nvfp4.dispatch import Choice, Installed, Shape, choose
from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.settings import BACKEND, backend_choice

__all__ = ["kernel_for"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")


def kernel_for(heads: int, topk: int, lse: bool) -> Choice:
    """The choice for launches of ``heads`` heads, logged once for each shape in a process; never one without a kernel.

    Builds the CUDA kernel where it may be chosen. Raises `BuildRefused` where nothing fits, and `SettingRefused`.
    """
    config = get_current_vllm_config()
    shape = Shape(
        capability=capability(),
        heads=heads,
        topk=topk,
        lse=lse,
        tokens=config.scheduler_config.max_num_batched_tokens,
        graphs=not config.model_config.enforce_eager,
    )
    wanted = backend_choice()
    choice = choose(shape, _installed(shape.capability, wanted), wanted)
    if choice.kernel is None:
        raise BuildRefused(
            f"{BACKEND}={wanted} for {heads} heads, a top-k of {topk}, compute capability {shape.capability}",
            choice.reason,
            "a kernel that fits the shape and can be built here",
            f"Install what is missing, or set {BACKEND}=off for what vLLM reads by itself",
        )
    _tell(shape, choice)
    return choice


def _installed(capability: tuple[int, int], wanted: str) -> Installed:
    """What can be used, with the CUDA kernel built where it may be chosen."""
    from flashinfer_nvfp4.installed import built, facts

    return built(capability) if wanted in ("auto", "cuda", "gather") else facts(capability)


@functools.cache
def _tell(shape: Shape, choice: Choice) -> None:
    _log.info(
        "flashinfer_nvfp4: %s decodes NVFP4 rows for %d heads, top-k %d%s on %d.%d: %s",
        choice.kernel,
        shape.heads,
        shape.topk,
        " with log-sum-exp" if shape.lse else "",
        *shape.capability,
        choice.reason,
    )
