"""What is written in upstream's format, by upstream's own settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from glm53.stage.errors import StageError
from glm53.stage.native import SUFFIXES
from glm53.stage.tree import Tree
from glm53.stage.wrapping import excused, wrapped

__all__ = ["formatted"]


def formatted(tree: Tree, path: Path, text: str, before: str | None = None) -> str:
    """The text as the tree's own formatter has it; as it is where the tree has no settings, or there is no formatter.

    Python goes through ruff, C++ and CUDA through clang-format. Lines that the project's rules find too long (E501) are
    wrapped where they are comments or docstrings, and excused where they are code. before: what an edited file was; if
    that was not in the format, the file is not reformatted, and only lines that are not in it are wrapped. Raises
    `StageError` with the formatter's words if it refuses the text.
    """
    if path.suffix in SUFFIXES:
        program, settings = shutil.which("clang-format"), tree.root / ".clang-format"
        if program is None or not settings.is_file():
            return text
        return _run(tree, path, text, [program, f"--style=file:{settings}", f"--assume-filename={path}"], settings)
    settings, program = tree.root / "pyproject.toml", _ruff()
    if program is None or not settings.is_file():
        return text
    chosen = _settings(settings)
    if chosen is None:
        return text
    common = ["--config", str(settings), "--stdin-filename", str(path), "-"]
    # To ruff a module that is not written yet is another project's.
    isort = chosen.get("lint", {}).get("isort", {})
    first = json.dumps([*isort.get("known-first-party", []), tree.package.name])
    fixes = ["--select", "I" if before is None else "I,F401", "--config", f"lint.isort.known-first-party = {first}"]
    for command in (["check", "--quiet", "--fix-only", *fixes], ["format", "--quiet"]):
        if before is None or _run(tree, path, before, [program, *command, *common], settings) == before:
            text = _run(tree, path, text, [program, *command, *common], settings)
    check = [program, "check", "--quiet", "--exit-zero", "--output-format", "json", *common]
    known = frozenset((before or "").split("\n"))
    width, rows = _too_long(_run(tree, path, text, check, settings), text, known)
    if rows:
        text = wrapped(text, width, rows)
        text = excused(text, _too_long(_run(tree, path, text, check, settings), text, known)[1])
    return text


def _settings(path: Path) -> dict[str, Any] | None:
    """What a project's settings say to ruff; None if that is nothing."""
    try:
        found: dict[str, Any] | None = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("ruff")
    except ValueError as error:
        raise StageError(
            f"{path.name}: {error}",
            "the project's format is not known",
            "TOML",
            "Correct it, or start from a clean tree",
        ) from error
    return found


def _too_long(findings: str, text: str, known: Collection[str]) -> tuple[int, set[int]]:
    """The longest that a line may be, in characters, and the rows that are longer and not known."""
    found: list[dict[str, Any]] = [one for one in json.loads(findings) if one["code"] == "E501"]
    widths = [int(re.findall(r"\d+", one["message"])[-1]) for one in found]
    lines = text.split("\n")
    rows = {one["location"]["row"] for one in found}
    return min(widths, default=0), {row for row in rows if lines[row - 1] not in known}


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
