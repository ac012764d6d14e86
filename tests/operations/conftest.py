"""Fixtures of the operations' tests: the model, and one deployment that answers as it is told."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def operated_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model, of which Dynamo needs the tokenizer and the chat template."""
    from glm53.model import make

    folder = tmp_path_factory.mktemp("operated") / "model"
    make(folder, layers=1, seed=0, index_topk=128)
    return folder


@pytest.fixture(scope="session")
def dynamo() -> None:
    """Skips where there is no Dynamo."""
    if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
        pytest.skip("needs Dynamo: run `make test`, which installs it into .venv")


@pytest.fixture(scope="session")
def scripted(dynamo: None, operated_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A deployment (`dynamo_deployment.Deployment`) with one scripted worker that announces GLM's parsers."""
    from dynamo_deployment import deployed

    with deployed(tmp_path_factory.mktemp("scripted"), operated_model, DYN_PARSER_VERSION="2") as deployment:
        deployment.front()
        deployment.scripted("worker", "--parsers", "--no-tags")
        deployment.wait()
        yield deployment
