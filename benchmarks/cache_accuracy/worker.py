"""What runs in vLLM's workers, as their ``worker_extension_cls``; importing it there prepares the fold.

vLLM resolves the class in every worker, whichever process it lives in, before the model is loaded.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import vllm.model_executor.model_loader.base_loader as loader

from flashinfer_nvfp4.settings import FOLD

__all__ = ["AccuracyWorker"]

_process_weights = loader.process_weights_after_loading


@functools.wraps(_process_weights)
def _fold_and_process(model: Any, *arguments: Any, **options: Any) -> None:
    """Fold where nothing else does, as on the CPU; a model that is folded already stays as it is."""
    if os.environ[FOLD] == "on":
        from flashinfer_nvfp4.fold import fold_model

        fold_model(model)
    _process_weights(model, *arguments, **options)


loader.process_weights_after_loading = _fold_and_process


class AccuracyWorker:
    """Calls for `LLM.collective_rpc`; vLLM makes it a base class of its worker."""

    vllm_config: Any

    def accuracy_fingerprint(self) -> str | None:
        """How this worker's NVFP4 rows are to be read, None with another cache dtype."""
        from flashinfer_nvfp4.peer_fact import RowFingerprint

        return RowFingerprint().value(self.vllm_config)

    def accuracy_selected(self, row: int) -> list[int] | None:
        """Positions that the last layer with an indexer selected for token ``row`` of the last step.

        None where no layer has vLLM's shared buffer of them.
        """
        layers = self.vllm_config.compilation_config.static_forward_context
        for layer in layers.values():
            buffer = getattr(getattr(layer, "impl", None), "topk_indices_buffer", None)
            if buffer is not None:
                selected: list[int] = buffer[row].tolist()
                return [position for position in selected if position >= 0]
        return None
