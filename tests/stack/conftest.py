"""Real stacks on this machine: Dynamo frontend and router, vLLM workers, NIXL over UCX, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stacks import deployment_for

from glm53.local.stack import Stack, running_stack
from glm53.model import make


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make(folder, layers=4, seed=0, index_topk=128)
    return folder


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running disaggregated stack that records what it serves."""
    with running_stack(Stack(deployment_for(model, capture={}), tmp_path_factory.mktemp("pd")), print) as running:
        yield running
