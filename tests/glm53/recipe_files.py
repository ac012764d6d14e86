"""Shipped recipes, and small recipes with overrides, for the tests of recipes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from glm53.deployment import Deployment, Target, load, parse
from glm53.recipe import rendered

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
TARGETS: list[tuple[Path, Target]] = [(path, target) for path in RECIPES for target in load(path).targets]
NAMES = [f"{path.stem}-{target}" for path, target in TARGETS]


def raw(**overrides: Any) -> dict[str, Any]:
    """A recipe for B200 as plain data. overrides: a section's keys are merged into it, anything else replaces."""
    data: dict[str, Any] = {
        "name": "small",
        "hardware": "b200",
        "targets": ["kubernetes", "slurm"],
        "model": {"repository": "nvidia/GLM-5.3-NVFP4", "served_name": "glm-5.3", "weights": "nvfp4"},
        "workers": {"prefill": 1, "decode": 2},
        "roles": {"prefill": {"data_parallel": 8, "expert_parallel": True}, "decode": {"tensor_parallel": 4}},
        "engine": {
            "kv_cache_dtype": "fp8",
            "attention_backend": "FLASHINFER_MLA_SPARSE",
            "max_batched_tokens": 4096,
        },
        "tier": {"memory": "64GiB"},
        "cluster": {"rdma": "rdma/ib"},
    }
    for key, value in overrides.items():
        merged = isinstance(value, dict) and isinstance(data.get(key), dict)
        data[key] = {**data[key], **value} if merged else value
    return data


def deployment(**overrides: Any) -> Deployment:
    """The same, read."""
    return parse(raw(**overrides))


@functools.cache
def files(path: Path, target: Target) -> dict[str, str]:
    """What a shipped recipe renders to; not to be changed, it is rendered once."""
    return rendered(load(path), target, Path("/rendered"))
