"""Reads the config.json that plans are made from."""

from __future__ import annotations

import json
import os.path
from pathlib import Path
from typing import Any

__all__ = ["ConfigError", "read_config"]


class ConfigError(ValueError):
    """A model's config.json that cannot be read."""


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json, named by itself or by the model folder that holds it.

    Raises `ConfigError` if there is none or it is no JSON object.
    """
    file = path / "config.json" if os.path.isdir(path) else path  # a name that is too long is no folder
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"is not JSON that can be read: {error}"
        raise ConfigError(
            f"--model {path}: {file} {why}. It must be a model's config.json or a folder that holds one; download "
            "that file from the model's page, or make a model with `glm53 model make DIR`."
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"--model {path}: {file} holds a {type(config).__name__}, but a config.json is an object of settings. "
            "Give the config.json of a model."
        )
    return config
