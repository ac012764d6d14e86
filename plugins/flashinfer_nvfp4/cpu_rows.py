"""The rows as a format of vLLM's CPU attention: entry point ``nvfp4`` of the group ``vllm_cpu_dsa.row_formats``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flashinfer_nvfp4.policy import chosen_policy
from flashinfer_nvfp4.rowformat import ROW_BYTES

if TYPE_CHECKING:
    import torch

__all__ = ["Nvfp4Rows"]


class Nvfp4Rows:
    """352-byte rows written under the policy of ``FLASHINFER_NVFP4_POLICY``, for ``--kv-cache-dtype nvfp4_ds_mla``.

    Raises `RowsRefused` when it is built if the setting names no policy, and when it encodes if the model has
    another geometry or a latent is not finite.
    """

    name = "nvfp4"
    cache_dtypes: ClassVar[tuple[str, ...]] = ("nvfp4_ds_mla",)
    row_bytes = ROW_BYTES

    def __init__(self) -> None:
        self.policy = chosen_policy()

    def encode(self, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """Rows, uint8 [n, 352], of ``latent`` [n, 512] and ``rope`` [n, 64] in the model's dtype."""
        from flashinfer_nvfp4.codec import encode_rows

        return encode_rows(latent, rope, self.policy)

    def decode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The latent [n, 512] and RoPE [n, 64] parts of ``rows`` [n, 352], float32, exactly."""
        from flashinfer_nvfp4.codec import decode_rows

        return decode_rows(rows)
