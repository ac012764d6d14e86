"""An environment counts as complete only while its stamp, its inputs and what it holds agree."""

from dataclasses import replace
from pathlib import Path

import lines
import pytest
import stamp

LINE = lines.load("0.33.0")


def _hold(venv: Path, name: str, version: str, whole: bool = True) -> Path:
    info = stamp.site_packages(venv) / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if whole:
        (info / "INSTALLER").write_text("pip\n")
    return info


def _hold_all(venv: Path) -> None:
    for name, version in LINE.pins().items():
        _hold(venv, name.replace("-", "_"), version)


def test_a_stamp_is_read_back_as_written(tmp_path: Path) -> None:
    written = stamp.Stamp("0.33.0", "3.11.7", stack="a", project="b")
    written.write(tmp_path)

    assert stamp.read(tmp_path) == written


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"line": "0.33.0", "python": "3.11.7", "more": 1}'])
def test_what_is_no_stamp_is_read_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / stamp.STAMP).write_text(text)

    assert stamp.read(tmp_path) is None
    assert stamp.read(tmp_path / "absent") is None


def test_the_wanted_stamp_follows_kernels_place_and_line(tmp_path: Path) -> None:
    base = stamp.wanted(LINE, "_C", tmp_path)

    assert stamp.wanted(LINE, "_C", tmp_path) == base
    assert stamp.wanted(LINE, "_C_AVX2", tmp_path).stack != base.stack
    assert stamp.wanted(LINE, "_C", tmp_path / "elsewhere").stack != base.stack
    assert stamp.wanted(lines.load("0.32.0"), "_C", tmp_path).stack != base.stack


def test_a_changed_lock_file_changes_the_stack_and_a_changed_project_file_only_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lock-0.33.0.txt", "lines.toml", "pyproject.toml"):
        (tmp_path / name).write_text("a")
    for module in (stamp, lines):
        monkeypatch.setattr(module, "HERE", tmp_path)
        monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    base = stamp.wanted(LINE, "_C", tmp_path)

    (tmp_path / "pyproject.toml").write_text("b")
    project_changed = stamp.wanted(LINE, "_C", tmp_path)
    (tmp_path / "lock-0.33.0.txt").write_text("b")
    both_changed = stamp.wanted(LINE, "_C", tmp_path)

    assert project_changed.stack == base.stack
    assert project_changed.project != base.project
    assert both_changed.stack != base.stack
    assert replace(both_changed, stack=base.stack) == project_changed


def test_a_full_folder_has_no_drift(tmp_path: Path) -> None:
    _hold_all(tmp_path)
    _hold(tmp_path, "something_else", "1.0")

    assert stamp.drift(LINE, tmp_path) == []


def test_a_missing_a_replaced_and_a_half_installed_package_are_drift(tmp_path: Path) -> None:
    _hold_all(tmp_path)
    packages = stamp.site_packages(tmp_path)
    pins = LINE.pins()
    (packages / f"numpy-{pins['numpy']}.dist-info").rename(packages / "numpy-0.1.dist-info")
    (packages / f"torch-{pins['torch']}.dist-info" / "INSTALLER").unlink()
    (packages / f"vllm-{pins['vllm']}.dist-info").rename(tmp_path / "gone")

    assert stamp.drift(LINE, tmp_path) == [f"{name}=={pins[name]}" for name in ("numpy", "torch", "vllm")]


def test_half_installed_packages_and_pips_leftovers_are_dropped(tmp_path: Path) -> None:
    whole = _hold(tmp_path, "numpy", "2.0")
    half = _hold(tmp_path, "torch", "2.13.0", whole=False)
    leftovers = [stamp.site_packages(tmp_path) / name for name in ("~umpy", "~orch-2.0.dist-info", "~ile.pth")]
    for leftover in leftovers[:2]:
        leftover.mkdir()
    leftovers[2].write_text("")

    stamp.drop_half_installed(tmp_path)

    assert whole.exists()
    assert not half.exists()
    assert not any(leftover.exists() for leftover in leftovers)
