"""The commit message and the description of a pull request, from a topic and the register."""

from __future__ import annotations

import textwrap

from glm53.stage.staging import Change
from glm53.stage.topic import Topic
from glm53.stage.tree import Tree

__all__ = ["description", "message"]


def message(topic: Topic) -> str:
    """The commit's message: title, reasons, upstream's thread."""
    said = topic.reasons()
    body = [topic.title, "", *_filled(said.why), "", *_filled(topic.how), "", f"See {said.thread}"]
    return "\n".join(body) + "\n"


def description(topic: Topic, tree: Tree, found: list[Change]) -> str:
    """The pull request's text: why, how, evidence, risks, and where it is in use already."""
    said = topic.reasons()
    names = [change.path.relative_to(tree.root).as_posix() for change in found]
    new = [name for name, change in zip(names, found, strict=True) if change.before is None]
    edited = [name for name, change in zip(names, found, strict=True) if change.before is not None]
    parts = [
        f"# {topic.title}",
        "",
        "## Why",
        "",
        said.why,
        "",
        f"{_kind(said.thread)}: {said.thread}",
        "",
        "## How",
        "",
        topic.how,
        "",
    ]
    parts += [f"- edits `{name}`" for name in edited] + [f"- adds `{name}`" for name in new]
    parts += ["", "## Evidence", "", "Commands are those of the repository that this change comes from:", ""]
    parts += [f"- {one.figure} (`{one.command}`)" for one in topic.evidence]
    parts += [f"- tests: `{place.to.rsplit('/', 1)[-1]}`" for place in topic.tests]
    parts += ["", "## Risks", "", topic.risks]
    if patches := topic.patches():
        parts += ["", "## In use so far", ""]
        parts += [f"- as a replacement of `{patch.target}` at run time, outside of this project" for patch in patches]
    return "\n".join(parts) + "\n"


def _kind(link: str) -> str:
    """What a link leads to: a discussion, or the code in question."""
    return "Thread" if "/issues/" in link or "/pull/" in link else "Code"


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, 72, break_long_words=False, break_on_hyphens=False)
