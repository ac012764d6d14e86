"""What is staged passes the linter and formatter of the project it goes to."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from glm53.stage.errors import StageError
from glm53.stage.formatting import formatted
from glm53.stage.same import same_python
from glm53.stage.tree import PROJECTS, Tree
from glm53.stage.wrapping import excused, wrapped

SETTINGS = '[tool.ruff]\nline-length = 40\n[tool.ruff.lint]\nselect = ["E", "F", "I"]\n'
LONG = '''\
"""A module that says what it is for in more than forty characters.

- An item that is too long for one line of forty
  goes on.
- The next item.

name  columns stay as they are, however wide they are
"""

# A comment that is longer than forty characters
# goes on.
VALUE = "a text that has no place to be broken at"
WORD = 1
"""What it is, in far more than forty characters."""
'''


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    return Tree.open(PROJECTS["vllm"], tmp_path, "0.33.0")


def ruff(tree: Tree, *command: str) -> str:
    program = Path(sys.executable).with_name("ruff")
    done = subprocess.run([program, *command, "vllm"], cwd=tree.root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_a_paragraph_that_is_too_wide_is_filled_and_all_else_stays() -> None:
    rows = [row for row, line in enumerate(LONG.splitlines(), 1) if len(line) > 40]
    assert wrapped(LONG, 40, rows).splitlines() == [
        '"""A module that says what it is for in',
        "more than forty characters.",
        "",
        "- An item that is too long for one line",
        "  of forty goes on.",
        "- The next item.",
        "",
        "name  columns stay as they are, however wide they are",
        '"""',
        "",
        "# A comment that is longer than forty",
        "# characters goes on.",
        'VALUE = "a text that has no place to be broken at"',
        "WORD = 1",
        '"""What it is, in far more than forty',
        'characters."""',
    ]


def test_the_end_of_a_docstring_stays_on_its_own_line() -> None:
    text = 'def f():\n    """One.\n\n    Words that are too many here.\n    """\n'
    assert wrapped(text, 24, [4]) == 'def f():\n    """One.\n\n    Words that are too\n    many here.\n    """\n'


def test_code_that_is_too_long_is_excused_behind_the_string_that_it_is_in() -> None:
    assert excused("a = '''1\n2\n3'''\nb = 4\n", [2, 4]) == "a = '''1\n2\n3'''  # noqa: E501\nb = 4  # noqa: E501\n"


def test_a_new_file_passes_the_projects_linter_and_says_the_same(tree: Tree) -> None:
    path = tree.package / "new.py"
    text = LONG.replace(
        "\n# A", "\nimport os\nfrom vllm.other import thing\nimport numpy\nprint(os, thing, numpy)\n# A"
    )
    path.write_text(formatted(tree, path, text))
    assert ruff(tree, "check") == ruff(tree, "format", "--check") == ""
    assert same_python(path.read_text(), text)
    body = ast.parse(path.read_text()).body
    imports = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == ["import os", "import numpy", "from vllm.other import thing"]


def test_an_edit_leaves_a_formatted_file_formatted_and_without_unused_imports(tree: Tree) -> None:
    path = tree.package / "old.py"
    before = "import os\nimport time\n\nos.getpid()\ntime.sleep(1)\n"
    after = "import os\nimport time\n# A comment that is longer than forty characters\ntime.sleep( 2 )\n"
    path.write_text(formatted(tree, path, after, before))
    assert ruff(tree, "check") == ruff(tree, "format", "--check") == ""
    assert path.read_text().endswith("\n\n# A comment that is longer than forty\n# characters\ntime.sleep(2)\n")
    assert "import os" not in path.read_text()


def test_a_file_that_was_not_in_the_projects_format_keeps_its_own(tree: Tree) -> None:
    path = tree.package / "old.py"
    before = "import time\n# upstream's own comment, which is too long already\ntime.sleep( 1 )\n"
    after = before + "time.sleep( 2 )  \n"
    assert formatted(tree, path, after, before) == after


def test_a_project_that_does_not_limit_lines_keeps_ours(tree: Tree) -> None:
    (tree.root / "pyproject.toml").write_text(SETTINGS + 'ignore = ["E501"]\n')
    assert "more than forty characters.\n" in formatted(tree, tree.package / "new.py", LONG).splitlines(True)[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [("[tool.ruff\n", "pyproject.toml: Expected"), ("[tool.ruff]\nline-length = 'x'\n", "ruff on")],
)
def test_settings_that_cannot_be_read_are_told(tree: Tree, settings: str, says: str) -> None:
    (tree.root / "pyproject.toml").write_text(settings)
    with pytest.raises(StageError, match=says):
        formatted(tree, tree.package / "new.py", LONG)
