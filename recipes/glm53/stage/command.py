"""``glm53 stage``: the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from glm53.stage.commit import commit, require_writable
from glm53.stage.description import description, message
from glm53.stage.errors import StageError
from glm53.stage.releases import fetched, installed, project
from glm53.stage.staging import State, Verdict, diff, examine, write
from glm53.stage.topic import Topic
from glm53.stage.topics import TOPICS
from glm53.stage.tree import Tree

__all__ = ["stage"]


Name = Annotated[
    str | None, typer.Argument(help="vllm, flashinfer, dynamo, xgrammar, mooncake or nixl.", metavar="PROJECT")
]
Checkout = Annotated[Path | None, typer.Argument(help="Its checkout, or unpacked distribution.", metavar="CHECKOUT")]
TopicId = Annotated[str | None, typer.Option("--topic", help="The change to stage.", metavar="ID")]
Branch = Annotated[
    str | None, typer.Option("--branch", help="Name of the new branch; glm53/ID if left out.", metavar="NAME")
]
Release = Annotated[
    str | None,
    typer.Option("--release", help="The release that the tree follows, if it does not say so.", metavar="VERSION"),
]
Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against", help="With --check: also this release, such as vllm==0.34.0; it is fetched.", metavar="RELEASE"
    ),
]
SignOff = Annotated[
    bool, typer.Option("--signoff", help="With --apply: end the commit's message with your Signed-off-by line.")
]
Text = Annotated[Path | None, typer.Option("--description", help="Write the pull request's text here.", metavar="FILE")]


def stage(
    name: Name = None,
    checkout: Checkout = None,
    topic: TopicId = None,
    branch: Branch = None,
    release: Release = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write. Without it nothing is changed.")] = False,
    signoff: SignOff = False,
    check: Annotated[bool, typer.Option("--check", help="Say of each topic whether it is still needed.")] = False,
    against: Against = None,
    to: Text = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")] = False,
) -> None:
    """Make a plugin's change a branch of the upstream project, ready for review.

    Shows what would be changed. With --apply, a git checkout gets a branch with one commit; an unpacked distribution
    gets the files. Nothing is pushed.

    Exit code 0: staged, or could be; with --check, every topic is in its place. 1: upstream has changed what a topic
    edits, or has the topic already; 2: the tree or the options cannot be used.

    \b
    Which topics are there for a project, and how does this checkout stand to them?
      glm53 stage vllm ~/vllm
    Look at one, then make its branch:
      glm53 stage vllm ~/vllm --topic spin-wait
      glm53 stage vllm ~/vllm --topic spin-wait --apply
    Is everything still needed, here and on a newer release?
      glm53 stage --check --against vllm==0.34.0
    """
    try:
        if check:
            if topic or branch or apply or signoff or to:
                raise _usage(
                    "--check with --topic, --branch, --apply, --signoff or --description", "--check changes nothing"
                )
            raise typer.Exit(_check(name, checkout, release, against or [], as_json))
        if against:
            raise _usage("--against without --check", "a topic is staged on CHECKOUT alone")
        if (branch or signoff) and not apply:
            raise _usage("--branch or --signoff without --apply", "no branch is made")
        if to is not None and topic is None:
            raise _usage("--description without --topic", "each topic has a text of its own")
        if name is None or checkout is None:
            raise _usage("no PROJECT and CHECKOUT", "there is nothing to stage on")
        tree = Tree.open(project(name), checkout, release)
        if topic is None:
            if apply:
                raise _usage("--apply without --topic", "a branch holds one topic")
            raise typer.Exit(_report([examine(one, tree) for one in _topics(tree)], as_json))
        raise typer.Exit(_stage(_topic(tree, topic), tree, branch, apply, signoff, to, as_json))
    except OSError as error:
        print(f"glm53 stage: {error}. The tree is as it was; see to the file's folder and its rights.", file=sys.stderr)
        raise typer.Exit(2) from error
    except StageError as error:
        print(f"glm53 stage: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


def _usage(seen: str, why: str) -> StageError:
    return StageError(seen, why, "the forms that `glm53 stage --help` shows", "Correct the options")


def _topics(tree: Tree) -> list[Topic]:
    return [topic for topic in TOPICS if topic.project == tree.project]


def _topic(tree: Tree, wanted: str) -> Topic:
    known = {topic.id: topic for topic in _topics(tree)}
    if wanted not in known:
        raise StageError(
            f"topic {wanted!r}", f"{tree.project.title} has none of that name", ", ".join(known), "Correct --topic"
        )
    return known[wanted]


def _stage(
    topic: Topic, tree: Tree, branch: str | None, apply: bool, signoff: bool, to: Path | None, as_json: bool
) -> int:
    verdict = examine(topic, tree)
    if verdict.state is not State.NEEDED or not verdict.tested:
        _print_verdicts([verdict], as_json)
        if not verdict.tested:
            _note(
                f"nothing was written: {topic.id} is written for {tree.project.title} {topic.releases}, and nobody has "
                f"looked at {tree.version}. Stage it on such a release and rebase, or extend the topic's releases"
            )
        return 0 if verdict.state is State.STAGED else 1
    found = list(verdict.changes)
    text = description(topic, tree, found)
    made = None
    if to is not None:
        to.write_text(text, encoding="utf-8")
    if apply:
        require_writable(tree, found)
        if tree.is_checkout:
            made = commit(tree, found, branch or f"glm53/{topic.id}", message(topic), signoff)
        else:
            write(found)
    if as_json:
        _json({**_data(verdict), "applied": apply, "commit": made, "diff": diff(tree, found), "description": text})
        return 0
    sys.stdout.write(diff(tree, found))
    if to is None:
        sys.stdout.write("\n" + text)
    _note(_done(topic, tree, branch, apply, made, len(found)))
    return 0


def _done(topic: Topic, tree: Tree, branch: str | None, apply: bool, made: str | None, files: int) -> str:
    if made is not None:
        return f"{files} file(s) committed as {made[:12]} on branch {branch or 'glm53/' + topic.id}; nothing was pushed"
    if apply:
        return f"{files} file(s) written below {tree.root}; it is no git checkout, so there is no branch"
    return f"{files} file(s) would change; nothing was written. Add --apply to write"


def _check(name: str | None, checkout: Path | None, release: str | None, against: list[str], as_json: bool) -> int:
    if name is not None and checkout is None:
        raise _usage("--check with a PROJECT and no CHECKOUT", "it is not clear which tree is meant")
    trees = [Tree.open(project(name), checkout, release)] if name and checkout else installed()
    verdicts = [examine(topic, tree) for tree in trees for topic in _topics(tree)]
    for requirement in against:
        _note(f"fetching {requirement}")
        with fetched(requirement) as tree:
            verdicts += [examine(topic, tree) for topic in _topics(tree)]
    if not verdicts:
        raise StageError(
            "no upstream project is installed here", "there is nothing to check", "a tree", "Name one, or use --against"
        )
    return _report(verdicts, as_json)


def _report(verdicts: list[Verdict], as_json: bool) -> int:
    _print_verdicts(verdicts, as_json)
    return int(any(verdict.state not in (State.NEEDED, State.STAGED) and verdict.tested for verdict in verdicts))


def _print_verdicts(verdicts: list[Verdict], as_json: bool) -> None:
    if as_json:
        _json({"topics": [_data(verdict) for verdict in verdicts]})
        return
    for verdict in verdicts:
        tree = verdict.tree
        untested = "" if verdict.tested else f" (written for {verdict.topic.releases})"
        _say(f"{tree.project.name} {tree.version}  {verdict.topic.id}: {verdict.state}{untested}")
        if verdict.place:
            _say(f"    {verdict.place}")


def _data(verdict: Verdict) -> dict[str, Any]:
    return {
        "project": verdict.tree.project.name,
        "release": str(verdict.tree.version),
        "topic": verdict.topic.id,
        "state": str(verdict.state),
        "place": verdict.place,
        "tested": verdict.tested,
    }


def _json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def _say(text: str) -> None:
    print(text)


def _note(text: str) -> None:
    print(text, file=sys.stderr)
