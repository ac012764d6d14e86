"""New files in upstream's format, by upstream's own settings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from glm53.stage.errors import StageError
from glm53.stage.native import SUFFIXES
from glm53.stage.tree import Tree

__all__ = ["formatted"]


def formatted(tree: Tree, path: Path, text: str) -> str:
    """The text as the tree's own formatter has it; as it is where the tree has no settings, or there is no formatter.

    Python goes through ruff, C++ and CUDA through clang-format. Raises `StageError` with their words if they refuse it.
    """
    if path.suffix in SUFFIXES:
        program, settings = shutil.which("clang-format"), tree.root / ".clang-format"
        if program is None or not settings.is_file():
            return text
        return _run(tree, path, text, [program, f"--style=file:{settings}", f"--assume-filename={path}"], settings)
    settings, program = tree.root / "pyproject.toml", _ruff()
    if program is None or not settings.is_file() or "ruff" not in tomllib.loads(settings.read_text()).get("tool", {}):
        return text
    for command in (["check", "--quiet", "--select", "I", "--fix-only"], ["format", "--quiet"]):
        common = ["--config", str(settings), "--stdin-filename", str(path), "-"]
        text = _run(tree, path, text, [program, *command, *common], settings)
    return text


def _run(tree: Tree, path: Path, text: str, command: list[str], settings: Path) -> str:
    done = subprocess.run(command, input=text, cwd=tree.root, capture_output=True, text=True, check=False)
    if done.returncode:
        name = Path(command[0]).name
        raise StageError(
            f"{name} on {path.name}: {done.stderr.strip()}",
            "the file would not be in the project's format",
            f"a {name} that takes the project's {settings.name}",
            f"Install the {name} that the project pins, or take {name} off the PATH",
        )
    return done.stdout


def _ruff() -> str | None:
    beside = Path(sys.executable).with_name("ruff")
    return str(beside) if beside.is_file() else shutil.which("ruff")
