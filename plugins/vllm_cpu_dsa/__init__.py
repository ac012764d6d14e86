"""GLM-5-style sparse attention (MLA with the DSA indexer) on vLLM's CPU platform, in plain torch.

Installed but idle until ``VLLM_CPU_DSA=1`` is set, so a GPU host that has the bundle is untouched. vLLM calls
`platform` once a process to learn which platform to use and `register` in every process.
"""

from __future__ import annotations

import os

__all__ = ["SETTING", "enabled", "platform", "register"]

SETTING = "VLLM_CPU_DSA"
PLATFORM = "vllm_cpu_dsa.platform.CpuDsaPlatform"

_registered = False


def enabled() -> bool:
    """Whether ``VLLM_CPU_DSA`` switches the plugin on; raises ValueError for anything but 0, 1 or unset."""
    value = os.environ.get(SETTING, "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"{SETTING}={value!r} is neither on nor off, and a guess could change which attention code runs; "
            f"allowed are 1 (on), 0 and unset (off). Set {SETTING}=1 for sparse MLA on the CPU, or unset it."
        )
    return value == "1"


def platform() -> str | None:
    """Entry point ``vllm.platform_plugins``: the platform's class path, or None while switched off.

    vLLM drops a platform plugin that raises and goes on without it, so a bad setting counts as off here and
    is refused by `register`.
    """
    return PLATFORM if os.environ.get(SETTING) == "1" else None


def register() -> None:
    """Entry point ``vllm.general_plugins``: stops the start-up if the plugin is on but cannot do its work.

    Harmless when repeated. Raises ValueError for a bad setting, `stockpatch.UnsupportedVersion` outside the
    tested vLLM releases, and RuntimeError if vLLM runs on another platform.
    """
    global _registered
    if not enabled() or _registered:
        return
    from vllm_cpu_dsa.patches import REGISTER, VLLM

    VLLM.require()

    from vllm import envs
    from vllm.platforms import current_platform

    active = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
    if active != PLATFORM:
        hint = (
            "VLLM_TARGET_DEVICE=cpu makes vLLM pass over every platform plugin: unset it"
            if os.environ.get("VLLM_TARGET_DEVICE") == "cpu"
            else f"Set {SETTING} before vLLM is imported, in an environment where this package is installed"
        )
        raise RuntimeError(
            f"{SETTING}=1, but vLLM runs on {active}, whose CPU side refuses sparse attention; needed is "
            f"{PLATFORM}. {hint}, or set {SETTING}=0."
        )
    # vLLM warns about, or with a strict setting refuses, VLLM_* variables that it does not know.
    envs.environment_variables.setdefault(SETTING, enabled)
    # Both ends of a message queue wait in it, so this one is for every process, not only for workers.
    REGISTER.apply(["spin-wait-sleeps"])
    _registered = True
