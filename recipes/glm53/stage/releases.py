"""Trees of releases: those that are installed, and others that are fetched from the package index to be looked at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from glm53.stage.errors import StageError
from glm53.stage.tree import PROJECTS, Project, Tree

__all__ = ["fetched", "installed", "project"]


def project(name: str) -> Project:
    """The project of this name. Raises `StageError`."""
    if name not in PROJECTS:
        raise StageError(f"project {name!r}", "there are no topics for it", ", ".join(PROJECTS), "Correct the name")
    return PROJECTS[name]


def installed() -> list[Tree]:
    """The trees of all projects that are installed beside this interpreter."""
    trees = []
    for one in PROJECTS.values():
        for name in one.distributions:
            try:
                found = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            root = Path(str(found.locate_file("")))
            if any((root / package).is_dir() for package in one.packages):
                trees.append(Tree.open(one, root, found.version))
                break
    return trees


@contextmanager
def fetched(requirement: str) -> Iterator[Tree]:
    """The tree of a release such as ``vllm==0.34.0``, without what it depends on, for as long as it is needed.

    It is unpacked and not run. Raises `StageError` if the index has no such release.
    """
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise StageError(
            f"{requirement!r}", "it names no release", "a name and a version, such as vllm==0.34.0", "Correct it"
        ) from error
    owners = [
        one for one in PROJECTS.values() if canonicalize_name(wanted.name) in map(canonicalize_name, one.distributions)
    ]
    if not owners:
        known = ", ".join(name for one in PROJECTS.values() for name in one.distributions)
        raise StageError(f"{wanted.name} in {requirement!r}", "there are no topics for it", known, "Correct the name")
    with TemporaryDirectory(prefix="stage-") as folder:
        command = [*_installer(), "--no-deps", "--target", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StageError(
                f"{requirement}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no answer'}",
                "it could not be fetched",
                "a release that the package index has for this machine",
                "Unpack it yourself, and name its folder",
            )
        yield Tree.open(owners[0], Path(folder))


def _installer() -> list[str]:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet"]
