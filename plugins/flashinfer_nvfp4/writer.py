"""Who writes rows in this process, and under which policy.

Stock writes them under ``rtn`` until an attention layer of this plugin is built. From then on the layers' rows are
written here, after the model's fused norm and RoPE (`flashinfer_nvfp4.patches`) and in the layers' own cache update.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from flashinfer_nvfp4.policy import Policy, chosen_policy
from flashinfer_nvfp4.settings import CACHE_DTYPE

if TYPE_CHECKING:
    import torch

__all__ = ["STOCK_POLICY", "activate", "around_fused_write", "warm_up", "write", "writes", "written_policy"]

STOCK_POLICY: Policy = "rtn"
"""Of vLLM's own writers."""

_policy: Policy | None = None
_cuda = False


def activate(*, cuda: bool) -> None:
    """Write rows here from now on, under the policy of the environment; harmless when repeated.

    ``cuda``: by the CUDA kernel, else by Triton's; both write the same bytes. Raises `RowsRefused` for a setting that
    names no policy, and `stockpatch.PatchError` if vLLM's fused path is not the one that this was written for.
    """
    global _policy, _cuda
    from flashinfer_nvfp4.patches import FUSED_WRITE, REGISTER

    policy = chosen_policy()
    REGISTER.apply(FUSED_WRITE)
    _policy, _cuda = policy, cuda


def written_policy() -> Policy:
    """The policy of whoever writes this process's rows: the environment's once `activate` was called, else stock's."""
    return _policy or STOCK_POLICY


def writes() -> bool:
    """Whether rows are written here, and not by stock."""
    return _policy is not None


def write(latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Rows of ``latent`` [tokens, 512] and ``rope`` [tokens, 64] to ``slots`` [at most tokens] of ``cache``.

    ``cache``: uint8 [blocks, block size, 352]. Tokens beyond the slots are padding and not written.
    """
    policy = written_policy()
    tokens = min(latent.shape[0], slots.shape[0])
    arguments = latent[:tokens], rope[:tokens], cache, slots[:tokens]
    if _cuda:
        from flashinfer_nvfp4.cuda_encode import encode as cuda_encode

        cuda_encode(*arguments, policy)
        return
    from flashinfer_nvfp4.kernels.encode import encode

    encode(*arguments, policy)


def warm_up(device: torch.device, block_size: int) -> None:
    """Compile what `write` launches, by writing nothing."""
    import torch

    from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

    values = torch.zeros((1, LATENT + ROPE), dtype=torch.bfloat16, device=device)
    latent, rope = (part.contiguous() for part in values.split((LATENT, ROPE), 1))
    cache = torch.zeros((1, block_size, ROW_BYTES), dtype=torch.uint8, device=device)
    write(latent, rope, cache, torch.full((1,), -1, dtype=torch.int64, device=device))


def around_fused_write(original: Any) -> Any:
    """``fused_norm_rope`` that leaves the rows of `CACHE_DTYPE` to `write`: one launch more, all else as it was.

    The rows are made of what the function also gives to attention, the normalized latent and the rotated part in the
    model's dtype. Stock's fused writer makes them of the values before that rounding.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fused_norm_rope(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        if not writes() or given.get("mla_kv_cache_dtype") != CACHE_DTYPE:
            return original(*args, **kwargs)
        cache, slots = given.get("mla_kv_cache"), given.get("slot_mapping")
        # With another dtype the kernel is compiled without stock's writer, whose instructions 9.0 does not have.
        given["mla_kv_cache"], given["mla_kv_cache_dtype"] = None, "auto"
        for name, source in (("kv_c_out", "kv_c"), ("k_pe_out", "k_pe")):
            if given.get(name) is None:
                given[name] = given[source].new_empty(given[source].shape)
        result = original(*bound.args, **bound.kwargs)
        if cache is not None and slots is not None:
            write(given["kv_c_out"], given["k_pe_out"], cache, slots)
        return result

    return fused_norm_rope
