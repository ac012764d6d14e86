"""Metrics of vLLM's connector to Mooncake's store, which no test here runs, in the text that defines them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from dashboard_metrics import metrics

from glm53.dashboards.panels import SERVING


def test_every_metric_of_the_store_connector_is_defined_by_vllm() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs vLLM: run `make test`, which installs it into .venv")
    folder = Path(found.origin).parent / "distributed" / "kv_transfer" / "kv_connector" / "v1" / "mooncake" / "store"
    text = (folder / "metrics.py").read_text(encoding="utf-8")
    asked = {name for name in metrics(SERVING) if name.startswith("vllm:mooncake_store")}

    assert len(asked) == 2
    assert {name for name in asked if f'"{name}"' not in text} == set()
    assert '["operation", "status"]' in text
