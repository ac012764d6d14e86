"""What the tests of whole stacks share: the smallest deployment, and the reason to skip."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from glm53.deployment import Deployment, parse

__all__ = ["deployment_for", "needs_stack"]

needs_stack = pytest.mark.skipif(
    importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("vllm") is None,
    reason="needs vLLM and Dynamo: run `make test`, which installs them into .venv",
)


def deployment_for(model: Path, **overrides: Any) -> Deployment:
    """One prefill and one decode worker for the model in `model`."""
    raw: dict[str, Any] = {
        "name": "test",
        "model": {"path": str(model), "served_name": "tiny"},
        "workers": {"prefill": 1, "decode": 1},
        "engine": {"dtype": "float32", "max_model_len": 4096, "max_batched_tokens": 256, "kv_cache": "128MiB"},
    }
    return parse(raw | overrides)
