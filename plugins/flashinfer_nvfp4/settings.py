"""What an operator can set about the vLLM backend, read strictly. Standard library only; the rows' policy is in
`flashinfer_nvfp4.policy`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, get_args

from flashinfer_nvfp4.errors import SettingRefused

__all__ = ["BACKEND", "CACHE_DTYPE", "FOLD", "KERNELS", "Kernel", "backend_choice", "fold_wanted"]

CACHE_DTYPE = "nvfp4_ds_mla"
"""``--kv-cache-dtype`` of the rows."""

BACKEND = "FLASHINFER_NVFP4_BACKEND"
"""Environment variable: ``auto`` (also where it is unset), ``off``, or the one kernel to decode with."""
FOLD = "FLASHINFER_NVFP4_FOLD"
"""Environment variable: ``on`` (also where it is unset) or ``off``; prefill and decode must have the same value."""

Kernel = Literal["cuda", "flashinfer", "triton", "gather"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
"""Ways to decode, in the order in which ``auto`` tries them."""


def backend_choice() -> str:
    """``auto``, ``off`` or one of `KERNELS`; raises `SettingRefused` for anything else."""
    return _read(BACKEND, ("auto", "off", *KERNELS))


def fold_wanted() -> bool:
    """Whether each layer's latent is folded; raises `SettingRefused` for anything but on, off and unset."""
    return _read(FOLD, ("on", "off")) == "on"


def _read(setting: str, allowed: Sequence[str]) -> str:
    value = os.environ.get(setting) or allowed[0]
    if value not in allowed:
        raise SettingRefused(
            f"{setting}={value!r}",
            "it has no such value, and a guess could change what the cache holds or who reads it",
            f"{', '.join(allowed)}, and unset for {allowed[0]}",
            "Correct it in the environment of every worker",
        )
    return value
