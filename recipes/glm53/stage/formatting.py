"""New files in upstream's format, by upstream's own settings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from glm53.stage.errors import StageError
from glm53.stage.tree import Tree

__all__ = ["formatted"]


def formatted(tree: Tree, path: Path, text: str) -> str:
    """The text as ruff formats it under the tree's settings; as it is where the tree has none, or ruff is missing.

    Raises `StageError` with ruff's words if ruff refuses it.
    """
    settings = tree.root / "pyproject.toml"
    ruff = _ruff()
    if ruff is None or not settings.is_file() or "ruff" not in tomllib.loads(settings.read_text()).get("tool", {}):
        return text
    common = ["--config", str(settings), "--stdin-filename", str(path), "-"]
    for command in (["check", "--quiet", "--select", "I", "--fix-only"], ["format", "--quiet"]):
        done = subprocess.run(
            [ruff, *command, *common], input=text, cwd=tree.root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StageError(
                f"ruff {command[0]} on {path.name}: {done.stderr.strip()}",
                "the file would not be in the project's format",
                "a ruff that takes the project's pyproject.toml",
                "Install the ruff that the project pins, or take ruff off the PATH",
            )
        text = done.stdout
    return text


def _ruff() -> str | None:
    beside = Path(sys.executable).with_name("ruff")
    return str(beside) if beside.is_file() else shutil.which("ruff")
