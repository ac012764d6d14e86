"""A branch with one commit of a topic; if the commit fails, the checkout is as it was."""

from __future__ import annotations

from collections.abc import Iterable

from glm53.stage.errors import StageError
from glm53.stage.staging import Change, write
from glm53.stage.tree import Tree, git

__all__ = ["commit", "require_writable"]


def require_writable(tree: Tree, found: Iterable[Change]) -> None:
    """Raise `StageError` unless these changes may be written: the tree is clean and nothing runs from it."""
    if tree.installed:
        raise StageError(
            f"{tree.root} is an installed environment",
            "programs run from these files",
            "a checkout, or an unpacked source distribution or wheel",
            "Unpack the distribution elsewhere, and stage there",
        )
    if unclean := tree.unclean():
        raise StageError(
            f"{tree.root} has {len(unclean)} uncommitted file(s), such as {unclean[0].strip()!r}",
            "they would go into the commit, or be lost",
            "a clean checkout",
            "Commit or remove them",
        )
    for change in found:
        if change.before is not None and tree.touched(change.path):
            raise StageError(
                f"{change.path.relative_to(tree.root)} is not the file that {tree.project.title} {tree.version} has",
                "somebody has changed it",
                "the file that the wheel's RECORD describes",
                "Unpack the wheel again",
            )


def commit(tree: Tree, found: list[Change], branch: str, message: str, sign_off: bool = False) -> str:
    """Make the branch from what is checked out, with these changes as its one commit; returns the commit's id.

    sign_off: with the committer's Signed-off-by line. Raises `StageError` with git's words if it refuses.
    """
    git(tree.root, "check-ref-format", "--branch", branch)
    if git(tree.root, "branch", "--list", branch):
        raise StageError(
            f"branch {branch} exists already",
            "what is on it would be mixed with the topic",
            "a new name",
            f"Name another one with --branch, or delete it: git branch -D {branch}",
        )
    back = git(tree.root, "rev-parse", "--abbrev-ref", "HEAD")
    before = git(tree.root, "rev-parse", "HEAD")
    git(tree.root, "switch", "--create", branch)
    paths = [change.path.relative_to(tree.root).as_posix() for change in found]
    try:
        write(found)
        git(tree.root, "add", "--force", "--", *paths)
        git(tree.root, "commit", "--message", message, *(["--signoff"] if sign_off else []))
    except BaseException:
        git(tree.root, "reset", "--hard", before)
        for change in found:
            if change.before is None:
                change.path.unlink(missing_ok=True)
        git(tree.root, "switch", *(["--detach", before] if back == "HEAD" else [back]))
        git(tree.root, "branch", "-D", branch)
        raise
    return git(tree.root, "rev-parse", "HEAD")
