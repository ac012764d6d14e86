"""Fixtures of the frontend's tests: processes that all of them share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model with GLM's chat template and byte tokens."""
    from glm53.model import make

    folder = tmp_path_factory.mktemp("served") / "model"
    make(folder, layers=1, seed=0, index_topk=128)
    return folder


@pytest.fixture(scope="session")
def fronts(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Our frontend ("ours") over a scripted worker as it is meant to be; over another, which announces Dynamo's
    parsers, Dynamo's frontend ("stock") and ours ("ours_announced")."""
    if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
        pytest.skip("needs Dynamo: run `make test`, which installs it into .venv")
    from scripted_stack import OURS, STOCK, started

    with (
        started(tmp_path_factory.mktemp("plain"), served_model, {"ours": OURS}) as plain,
        started(
            tmp_path_factory.mktemp("announced"),
            served_model,
            {"stock": STOCK, "ours_announced": OURS},
            "--parsers",
            "--no-tags",
        ) as announced,
    ):
        yield {**plain, **announced}
