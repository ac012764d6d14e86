"""Writes docs/upstream.md from the topics: ``python -m glm53.stage.page [TREE ...] [--check]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from glm53.stage.place import repository
from glm53.stage.staging import State, examine
from glm53.stage.staying import STAYING
from glm53.stage.topic import Topic
from glm53.stage.topics import TOPICS
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["main", "render", "states"]

_HEAD = """\
# What upstream could take over

Each topic is one change that a plugin makes to a stock package, ready to become a branch there:

```
glm53 stage vllm ~/vllm                               # how does this checkout stand to each topic?
glm53 stage vllm ~/vllm --topic spin-wait             # look at the change and the pull request's text
glm53 stage vllm ~/vllm --topic spin-wait --apply     # make the branch; nothing is pushed
glm53 stage --check --against vllm==0.34.0            # is everything still needed, here and on a newer release?
```

A topic's code is the plugin's own, moved to where upstream keeps such code, with upstream's licence header and format;
edits are made at places that are named, not quoted, and refused unless there is exactly one such place. Its tests move
with it. `tests/glm53/test_stage_stock.py` stages every topic on a copy of the installed releases and runs the moved
tests there, with none of the plugins importable; and it runs the plugins' own tests against the moved modules, a few of
them by default and all with `GLM53_STAGED_TESTS=all`. Nothing of it has run on a GPU.

Where the checkout has ruff's settings, what is staged passes them: lines are as long as upstream's, and imports in its
order. `--signoff` ends the commit's message with your Signed-off-by line, which vLLM, Dynamo and NIXL ask for.

The states: `needed` on a release that lacks it, `upstream` on one that has it, `drifted` where upstream changed the
place that it edits. This page is written by `python -m glm53.stage.page`; edit the topics, not the page.
"""


def states(topic: Topic, trees: list[Tree]) -> dict[str, State]:
    """The topic's state on each release that there is a tree of, from the first that it is written for."""
    return {
        tree.version.public: examine(topic, tree).state
        for tree in sorted(trees, key=lambda tree: tree.version)
        if tree.project == topic.project and not topic.comes_after(tree.version)
    }


def render(trees: list[Tree]) -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for project in PROJECTS.values():
        topics = [topic for topic in TOPICS if topic.project == project]
        if topics:
            parts.append(f"## {project.title}\n")
            parts += [_topic(topic, states(topic, trees)) for topic in topics]
    parts.append("## What has no topic, and why\n")
    parts.append("Every other [patch](patches.md) is replaced by a topic above.\n")
    parts += [f"- {', '.join(f'`{record}`' for record in one.records)}: {one.reason}" for one in STAYING]
    return "\n".join(parts) + "\n"


def _topic(topic: Topic, found: dict[str, State]) -> str:
    said = topic.reasons()
    lines = [
        f"### `{topic.id}`: {topic.title}\n",
        f"- Why: {said.why}",
        f"- How: {topic.how}",
        f"- Thread: {said.thread}",
        f"- Written for: {topic.project.title} `{topic.releases}`; "
        + (", ".join(f"{version} {state}" for version, state in found.items()) or "not looked at here"),
        f"- Replaces: {', '.join(f'`{record}`' for record in topic.records) or 'no patch'}",
        f"- Gone when: {said.remove_when}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or with ``--check`` only compare; 0 when it is up to date, 1 when it is not."""
    parser = argparse.ArgumentParser(prog="python -m glm53.stage.page", description=__doc__)
    parser.add_argument(
        "trees", nargs="*", metavar="TREE", help="folders of releases, such as .venv/lib/.../site-packages"
    )
    parser.add_argument("--check", action="store_true", help="do not write; exit 1 if the page is stale")
    chosen = parser.parse_args(arguments)
    roots = [Path(one) for one in chosen.trees] or sorted(repository().glob(".venv*/lib/python3.*/site-packages"))
    text = render(_trees(roots))
    page = repository() / "docs" / "upstream.md"
    if chosen.check:
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            return 0
        print(f"{page} is out of date: run python -m glm53.stage.page", file=sys.stderr)
        return 1
    page.write_text(text, encoding="utf-8")
    return 0


def _trees(roots: list[Path]) -> list[Tree]:
    trees: dict[tuple[str, str], Tree] = {}
    for root in roots:
        for project in PROJECTS.values():
            if any((root / package).is_dir() for package in project.packages):
                tree = Tree.open(project, root)
                trees.setdefault((project.name, str(tree.version)), tree)
    return list(trees.values())


if __name__ == "__main__":
    sys.exit(main())
