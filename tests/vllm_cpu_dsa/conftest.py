"""Model folders and the child process in which engines run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dsa_engine import child

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """``folder(layers=7, ...)`` is a model folder with these choices, made once a session."""
    pytest.importorskip("safetensors", reason="needs the demo extra: make test")
    from glm53.model import make

    base = tmp_path_factory.mktemp("dsa-models")

    def made(**choices: Any) -> Path:
        path = base / ("-".join(f"{name}-{value}" for name, value in sorted(choices.items())) or "default")
        make(path, **choices)
        return path

    return made


@pytest.fixture(scope="session")
def run() -> Iterator[Callable[..., Any]]:
    """Call a function in the session's engine process."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs the pinned stock environment: make test")
    with child() as call:
        yield call
