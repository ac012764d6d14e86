"""The rows' fingerprint as a fact that prefill and decode must share: entry point ``nvfp4_rows`` of the group
``vllm_blhnc.peer_facts``."""

from __future__ import annotations

from typing import Any

from flashinfer_nvfp4.fingerprint import fingerprint
from flashinfer_nvfp4.policy import SETTING, Policy, chosen_policy

__all__ = ["RowFingerprint"]

STOCK_POLICY: Policy = "rtn"


class RowFingerprint:
    """What a worker's NVFP4 rows are, for its peers."""

    setting = f"{SETTING}, the latent folds and the glm53-blackwell release"

    def value(self, vllm_config: Any) -> str | None:
        """The fingerprint of this worker's rows; None with another cache dtype.

        Rows are written by this plugin on the CPU, elsewhere by vLLM's own writer. Raises `Refused` for a setting
        that names no policy, and for models of one process that are folded differently.
        """
        if vllm_config.cache_config.cache_dtype != "nvfp4_ds_mla":
            return None
        from flashinfer_nvfp4.fold import process_folds

        ours = vllm_config.device_config.device_type == "cpu"
        return fingerprint(chosen_policy() if ours else STOCK_POLICY, process_folds())
