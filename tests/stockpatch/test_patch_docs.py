"""docs/patches.md is written from the registers and may not lag behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stockpatch import Patch, Register, Window
from stockpatch.docs import discover, main, render

ROOT = Path(__file__).resolve().parents[2]

REGISTER = """
from stockpatch import Patch, Register, Window
REGISTER = Register({plugin!r}, [Patch(
    id="one", target="nosuchlib.a:B.c", window=Window(("nosuchlib",), ">=1,<2"), why="It is wrong.",
    upstream="https://example.org/1", remove_when="It is right.", replace=lambda original: original)])
"""


def test_the_page_in_the_repository_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stockpatch.docs", "--check"], cwd=ROOT, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_register_of_the_repository_is_found_without_importing_stock() -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'plugins');"
        "from stockpatch.docs import discover; print(len(discover(Path('plugins'))));"
        "print({'vllm', 'torch', 'dynamo', 'nixl', 'mooncake', 'flashinfer'} & set(sys.modules))"
    )
    count, stock = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).splitlines()

    assert int(count) == len(list(ROOT.glob("plugins/*/patches.py")))
    assert stock == "set()"


def test_a_record_is_rendered_with_everything_a_reader_needs() -> None:
    patch = Patch(
        id="one",
        target="lib.a:B.c",
        window=Window(("lib",), ">=1,<2"),
        why="It is wrong.",
        upstream="https://example.org/1",
        remove_when="It is right.",
        replace=lambda original: original,
        optional_outside=True,
    )
    text = render([Register("plug", [patch]), Register("idle", [])])

    assert text.endswith(
        """
## plug

### `one`

- Replaces: `lib.a:B.c`
- Releases: lib `>=1,<2`; others are skipped
- Why: It is wrong.
- Upstream: https://example.org/1
- Remove when: It is right.

## idle

No patches.
"""
    )


def test_writes_the_page_and_notices_when_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    plugins, page = tmp_path / "plugins", tmp_path / "docs" / "patches.md"
    (plugins / "docs_plug_one").mkdir(parents=True)
    (plugins / "docs_plug_one" / "patches.py").write_text(REGISTER.format(plugin="docs_plug_one"))
    arguments = ["--plugins", str(plugins), "--output", str(page)]

    assert main([*arguments, "--check"]) == 1
    assert "python -m stockpatch.docs" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0

    page.write_text(page.read_text() + "by hand")

    assert main([*arguments, "--check"]) == 1


def test_a_patches_module_without_a_register_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs_plug_two").mkdir()
    (tmp_path / "docs_plug_two" / "patches.py").write_text("REGISTER = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(TypeError, match="must be a stockpatch"):
        discover(tmp_path)


def test_says_where_to_run_when_there_is_no_plugins_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--plugins", str(tmp_path / "nowhere")])

    assert caught.value.code == 2
    assert "not a folder" in capsys.readouterr().err
