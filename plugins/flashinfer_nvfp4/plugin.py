"""What vLLM calls in every process that has the bundle installed: entry point ``flashinfer_nvfp4`` of the group
``vllm.general_plugins``. Imports the standard library only; nothing of vLLM is changed but a table of names."""

from __future__ import annotations

import logging

from flashinfer_nvfp4.settings import BACKEND, backend_choice

__all__ = ["register"]

_log = logging.getLogger("vllm.flashinfer_nvfp4")


def register() -> None:
    """Register `flashinfer_nvfp4.backend` over the names of stock's sparse MLA backends; harmless when repeated.

    Does nothing on a platform other than CUDA and with ``FLASHINFER_NVFP4_BACKEND=off``. A name that another package
    has taken stays its own, which is logged. Raises `SettingRefused` for a setting without a meaning.
    """
    if backend_choice() == "off":
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from flashinfer_nvfp4.stock import NAMES

    for name in NAMES:
        backend = AttentionBackendEnum.__members__.get(name)
        if backend is None:
            _log.warning("flashinfer_nvfp4: this vLLM has no %s, so NVFP4 rows have no reader of that name", name)
            continue
        path = f"flashinfer_nvfp4.backend.{name}"
        if backend.is_overridden() and backend.get_path() != path:
            _log.warning(
                "flashinfer_nvfp4 leaves %s to %s, which was registered before; for NVFP4 rows uninstall it, or set "
                "%s=off to silence this",
                name,
                backend.get_path(),
                BACKEND,
            )
            continue
        register_backend(backend, path)
