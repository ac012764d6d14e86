"""The rows' fingerprint as a fact that prefill and decode must share: entry point ``nvfp4_rows`` of the group
``vllm_blhnc.peer_facts``."""

from __future__ import annotations

from typing import Any

from flashinfer_nvfp4.fingerprint import fingerprint
from flashinfer_nvfp4.policy import SETTING, chosen_policy
from flashinfer_nvfp4.settings import BACKEND, CACHE_DTYPE, FOLD
from flashinfer_nvfp4.workspace import SETTING as PREFILL
from flashinfer_nvfp4.writer import written_policy

__all__ = ["RowFingerprint"]


class RowFingerprint:
    """What a worker's NVFP4 rows are, for its peers."""

    setting = f"{SETTING}, {BACKEND}, {FOLD}, {PREFILL}, the checkpoint and the glm53-blackwell release"

    def value(self, vllm_config: Any) -> str | None:
        """The fingerprint of this worker's rows; None where neither the model nor its draft keeps any.

        Rows are written by this plugin on the CPU and where it is their backend, else by vLLM's own writer, also where
        a worker leaves them to FLASHMLA_SPARSE. Raises `Refused` for a setting that names no policy, and for models of
        one process that are folded differently.
        """
        draft = getattr(getattr(vllm_config, "speculative_config", None), "kv_cache_dtype", None)
        if CACHE_DTYPE not in (vllm_config.cache_config.cache_dtype, draft):
            return None
        from flashinfer_nvfp4.fold import process_folds

        on_cpu = vllm_config.device_config.device_type == "cpu"
        return fingerprint(chosen_policy() if on_cpu else written_policy(), process_folds())
