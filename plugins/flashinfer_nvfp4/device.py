"""What a worker of vLLM has for kernels: its device, and the memory that all layers share."""

from __future__ import annotations

import torch

__all__ = ["capability", "shared_scratch", "trtllm_workspace"]


def capability() -> tuple[int, int]:
    """Compute capability of the worker's device."""
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability()
    return (found.major, found.minor)


def shared_scratch(count: int) -> torch.Tensor:
    """``count`` bytes, uint8, of the scratch memory that all layers of a worker share, valid until the next call."""
    from vllm.v1.worker.workspace import current_workspace_manager

    found: torch.Tensor = current_workspace_manager().get_simultaneous(((count,), torch.uint8))[0]
    return found


def trtllm_workspace(device: torch.device, more: int = 0) -> torch.Tensor:
    """The buffer of TRTLLM-gen that vLLM's layers share, zeroed when it is first asked for.

    ``more``: bytes beyond those that vLLM gives it, for log-sum-exps; a longer buffer replaces a shorter one.
    """
    from vllm import envs
    from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import _get_workspace_buffer

    found: torch.Tensor = _get_workspace_buffer(device, envs.VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE + more)
    return found
