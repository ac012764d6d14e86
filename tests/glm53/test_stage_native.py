"""Staging C++ and CUDA sources, and edits of what a function says of itself, on small trees of our own."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from glm53.stage.edits import Edit, Value
from glm53.stage.errors import Drifted, StageError
from glm53.stage.formatting import formatted
from glm53.stage.native import moved_native
from glm53.stage.place import Place, repository
from glm53.stage.same import same_native, same_python
from glm53.stage.signatures import Docstring, Message, Returns
from glm53.stage.source import Source
from glm53.stage.staging import State, changes, examine, write
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

HEAD = "# Copyright (c) them\n#\n# Licensed so.\n\n"
KERNEL = """\
// Rows for plug.
#pragma once

#include <cstdint>
#  include "rows.h"
#include "../parts/merge.cuh"

const char* kUrl = "http://x";  // "rows.h"
"""
FILES = {
    "plugins/plug/csrc/kernel.cu": "project/ops/csrc/kernel.cu",
    "plugins/plug/csrc/rows.h": "include/project/rows.h",
    "plugins/plug/parts/merge.cuh": "project/ops/csrc/merge.cuh",
}


def place(**more: object) -> Place:
    return Place("plugins/plug/csrc/kernel.cu", "project/ops/csrc/kernel.cu", **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53.stage.native.OURS", ("plug", "glm53"))


def test_includes_follow_and_the_licence_goes_on_top_as_a_block_comment() -> None:
    assert moved_native(KERNEL, place(), FILES, {"for plug": "for us"}, HEAD) == (
        "/*\n * Copyright (c) them\n *\n * Licensed so.\n */\n"
        "// Rows for us.\n#pragma once\n\n#include <cstdint>\n"
        '#  include "../../../include/project/rows.h"\n#include "merge.cuh"\n\n'
        'const char* kUrl = "http://x";  // "rows.h"\n'
    )


def test_a_tree_without_a_licence_gives_none() -> None:
    assert moved_native("#pragma once\n\n\n", place(), FILES, {}, "") == "#pragma once\n"


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        (
            '#include "gone.h"\n',
            {},
            r'kernel\.cu has #include "gone\.h": the topic does not move plugins/plug/csrc/gone',
        ),
        ("// Checked by plug.arguments.\n", {}, r"kernel\.cu names plug: upstream has no such package"),
        ("int x;\n", {"without": ("x",)}, "is to move in part.*Divide the file"),
        ("int x;\n", {"only": ("x",)}, "is to move in part"),
        ("int x;\n", {"edits": (Value(file="", scope="", target="x", code="1"),)}, "is to move in part"),
    ],
)
def test_what_cannot_move_is_refused(text: str, more: dict[str, object], says: str) -> None:
    with pytest.raises(StageError, match=says):
        moved_native(text, place(**more), FILES, {}, HEAD)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("// Another comment.\n" + KERNEL.replace("\n\n", "\n"), True),
        (KERNEL.replace('#  include "rows.h"\n', "").replace("// Rows", '#include "rows.h"\n/* Rows */ //'), False),
        (KERNEL.replace('#  include "rows.h"', '#include <new>\n#  include "rows.h"'), False),
        (KERNEL.replace("http://x", "http://y"), False),
        (KERNEL.replace("const char*", "char*"), False),
    ],
)
def test_files_are_the_same_but_for_comments_and_white_space(other: str, same: bool) -> None:
    assert same_native(KERNEL, other) is same


def test_includes_may_be_sorted_by_a_formatter() -> None:
    assert same_native('#include "b.h"\n#include "a.h"\nint x;\n', '#include "a.h"\n#include "b.h"\n\nint  x;\n')


def test_a_long_string_may_be_divided_by_a_formatter() -> None:
    assert same_native('f("one, two");\n', 'f("one, "\n  "two");\n')
    assert not same_native('f("one, two");\n', 'f("one, ", "two");\n')


def test_python_is_the_same_but_for_comments_and_the_order_of_imports_that_stand_together() -> None:
    text = "import b\nfrom a import d, c\n\n\ndef f():\n    import z\n    import y\n\n    return y\n"
    other = "from a import c, d  # new\nimport b\ndef f():\n    import y\n    import z\n    return y\n"
    assert same_python(text, other)
    assert not same_python(text, other.replace("import b", "import bb"))
    assert not same_python("import a\nx = 1\nimport b\n", "import b\nx = 1\nimport a\n")
    assert not same_python(text, "def (:\n")


# ---- trees -----------------------------------------------------------------------------------------------------------


def never(tree: Tree) -> None:
    return None


def topic(*sources: str) -> Topic:
    return Topic(
        id="rows",
        project=PROJECTS["flashinfer"],
        title="Rows",
        releases=">=0.7.4,<0.8",
        how="So.",
        risks="None.",
        near="api.py",
        solved=never,
        places=tuple(Place(f"plugins/flashinfer_nvfp4/csrc/{one}", f"{{package}}/csrc/{one}") for one in sources),
        evidence=(Evidence("none", "pytest tests/glm53/test_stage_native.py"),),
        records=("vllm_cpu_dsa:spin-wait-sleeps",),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "api.py").write_text(HEAD + "x = 1\n")
    return Tree.open(PROJECTS["flashinfer"], tmp_path, "0.7.4")


def test_headers_move_together_once(tree: Tree) -> None:
    whole = topic("memory.h", "platform.h")
    found = changes(whole, tree)
    write(found)

    for name in ("memory.h", "platform.h"):
        there = (tree.package / "csrc" / name).read_text()
        here = (repository() / "plugins" / "flashinfer_nvfp4" / "csrc" / name).read_text()
        assert there == "/*\n * Copyright (c) them\n *\n * Licensed so.\n */\n" + here
    assert changes(whole, tree) == []
    assert examine(whole, tree).state is State.STAGED


def test_a_header_without_what_it_includes_is_refused(tree: Tree) -> None:
    with pytest.raises(StageError, match=r'memory\.h has #include "platform\.h"'):
        changes(topic("memory.h"), tree)


def test_a_file_with_other_content_is_not_overwritten(tree: Tree) -> None:
    (tree.package / "csrc").mkdir()
    (tree.package / "csrc" / "platform.h").write_text("int x;\n")
    with pytest.raises(StageError, match=r"platform\.h is there already"):
        changes(topic("platform.h"), tree)


def test_the_trees_own_format_is_kept_where_clang_format_is_at_hand(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake where there is no clang-format, in its shape: text in, text out."""
    if shutil.which("clang-format") is None:
        program = tmp_path / "bin" / "clang-format"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\nset -e\ncase $1 in --style=file:*.clang-format) ;; *) exit 1;; esac\ntr -s ' '\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    path = tree.package / "csrc" / "x.h"
    assert formatted(tree, path, "int  x;\n") == "int  x;\n", "a tree without settings"
    (tree.root / ".clang-format").write_text("BasedOnStyle: Google\n")
    assert formatted(tree, path, "int  x;\n") == "int x;\n"


def test_a_formatter_that_fails_is_told(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "clang-format"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'unknown key' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    (tree.root / ".clang-format").write_text("BasedOnStyle: Google\n")
    with pytest.raises(StageError, match=r"clang-format on x\.h: unknown key.*project's \.clang-format"):
        formatted(tree, tree.package / "x.h", "int x;\n")


# ---- signatures ------------------------------------------------------------------------------------------------------

TEXT = '''\
"""Ops, ü."""


def run(
    query: Tensor,
) -> Tensor:
    r"""Run.

    Parameters
    ----------
    query : Tensor
    """
    if query is None:
        raise ValueError("no query")
    return query


def bare():
    return 1
'''


def edited(edit: Edit, text: str = TEXT) -> str:
    source = Source("ops.py", text)
    return source.spliced(edit.splices(source))


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (Returns(file="f", scope="run", code="Union[Tensor, int]"), "-> Tensor:", "-> Union[Tensor, int]:"),
        (
            Docstring(file="f", scope="run", text="{text}\n\nReturns\n-------\nMuch."),
            "    query : Tensor\n",
            "    query : Tensor\n\n    Returns\n    -------\n    Much.\n",
        ),
        (Docstring(file="f", scope="", text="{text}\n\nAnd more."), "Ops, ü.", "Ops, ü.\n\nAnd more.\n"),
        (Docstring(file="f", scope="", text="Other ops."), "Ops, ü.", "Other ops."),
        (
            Message(file="f", scope="run", error="ValueError", code='f"query={query}"'),
            '"no query"',
            'f"query={query}"',
        ),
    ],
)
def test_what_a_function_says_of_itself_is_edited_once(edit: Edit, before: str, after: str) -> None:
    once = edited(edit)
    assert once == TEXT.replace(before, after)
    assert edited(edit, once) == once


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Returns(file="f", scope="bare", code="int"), "return type of bare found nowhere"),
        (Docstring(file="f", scope="bare", text="x"), "docstring of bare"),
        (Docstring(file="f", scope="gone", text="x"), "gone found nowhere"),
        (
            Message(file="f", scope="bare", error="ValueError", code="'x'"),
            r"ValueError\(\.\.\.\) in bare found nowhere",
        ),
    ],
)
def test_a_function_that_says_nothing_of_itself_is_refused(edit: Edit, says: str) -> None:
    with pytest.raises(Drifted, match=says):
        edited(edit)
