"""Whether an environment is what its inputs ask for: a stamp inside it, written last, read first."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from lines import HERE, REPOSITORY, Line, normalised

STAMP = "glm53-environment.json"
# pip writes this file of a distribution after all its others, so a distribution without it is half installed.
INSTALLED_LAST = "INSTALLER"


@dataclass(frozen=True)
class Stamp:
    """What a folder is for (`line`), and what it was last completed from; empty hashes while it is built."""

    line: str
    python: str
    stack: str = ""
    project: str = ""

    def write(self, venv: Path) -> None:
        part = venv / f"{STAMP}.part"
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        part.replace(venv / STAMP)


def read(venv: Path) -> Stamp | None:
    """Return the stamp of `venv`, or None if this program did not make the folder."""
    try:
        return Stamp(**json.loads((venv / STAMP).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def wanted(line: Line, kernel: str, venv: Path) -> Stamp:
    """Return the stamp that a complete environment of `line` bears here and now."""
    inputs = [line.lock, HERE / "lines.toml", *sorted(HERE.glob("*.py"))]
    texts = [path.read_bytes() for path in inputs]
    place = f"{venv.absolute()} {REPOSITORY} {sys.base_prefix}"
    return Stamp(
        line=line.name,
        python=platform.python_version(),
        stack=_hash(*texts, kernel.encode(), place.encode(), platform.python_version().encode()),
        project=_hash((REPOSITORY / "pyproject.toml").read_bytes()),
    )


def drift(line: Line, venv: Path) -> list[str]:
    """Return the pins that the folder no longer holds, judged by the names of its metadata folders."""
    held = set()
    for info in site_packages(venv).glob("*.dist-info"):
        if not (info / INSTALLED_LAST).exists():
            continue
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        held.add((normalised(name), version))
    return sorted(f"{name}=={version}" for name, version in line.pins().items() if (name, version) not in held)


def drop_half_installed(venv: Path) -> None:
    """Forget what an interrupted pip left half done, so that the next one installs it again."""
    for info in site_packages(venv).glob("*.dist-info"):
        if not (info / INSTALLED_LAST).exists():
            shutil.rmtree(info)
    # pip renames what it is about to replace to a name that begins like this.
    for leftover in site_packages(venv).glob("~*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def site_packages(venv: Path) -> Path:
    """Return the folder that the environment's Python imports from."""
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
