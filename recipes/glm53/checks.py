"""What can be known to be wrong before any process is started."""

from __future__ import annotations

import json
from pathlib import Path

from glm53.model.folder import MANIFEST, ModelError, verify

__all__ = ["check_model_folder"]

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")


def check_model_folder(folder: Path) -> None:
    """Raise `ModelError` naming the first file of a checkpoint that is missing or, if made here, changed."""
    if (folder / MANIFEST).exists():
        verify(folder)
        return
    fix = "Give the folder of a complete checkpoint as model.path, or let `glm53 model make` write a small one."
    if not folder.is_dir():
        raise ModelError(f"model.path={folder} is not a folder, so there is no model to serve. {fix}")
    names = [*_NEEDED, *_weights(folder, fix)]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ModelError(f"{folder} lacks {missing[0]} ({len(missing)} of {len(names)} files are missing). {fix}")


def _weights(folder: Path, fix: str) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [] if list(folder.glob("*.safetensors")) else ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read as a list of weight files ({error!r}). {fix}") from error
