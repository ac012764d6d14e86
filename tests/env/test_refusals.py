"""A machine that cannot hold the environment is refused with a sentence that says what to change."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import refusals

SETUP = Path(__file__).resolve().parents[2] / "env" / "setup_env.py"


@pytest.mark.parametrize("version", [(3, 11), (3, 12)])
def test_accepts_the_supported_pythons(version: tuple[int, int]) -> None:
    refusals.check_python(version)


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 13), (4, 0)])
def test_refuses_any_other_python_naming_what_was_seen_and_what_is_needed(version: tuple[int, int]) -> None:
    with pytest.raises(refusals.Refusal) as caught:
        refusals.check_python(version)

    assert f"Python {version[0]}.{version[1]} " in str(caught.value)
    assert "3.11 or 3.12" in str(caught.value)
    assert "Next step" in str(caught.value)


def test_the_program_itself_says_so_instead_of_a_traceback() -> None:
    code = (
        "import runpy, sys\n"
        "sys.version_info = (3, 10, 4)\n"
        f"sys.path.insert(0, {str(SETUP.parent)!r})\n"
        f"runpy.run_path({str(SETUP)!r}, run_name='__main__')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr.startswith("error: Python 3.10 ")
    assert "Traceback" not in done.stderr


def test_refuses_systems_other_than_linux_saying_why() -> None:
    with pytest.raises(refusals.Refusal, match=r"system=Darwin .*manylinux.*Allowed: Linux.*Next step"):
        refusals.check_system("Darwin", "x86_64")


def test_refuses_other_processors_saying_why() -> None:
    with pytest.raises(refusals.Refusal, match=r"machine=aarch64 .*AVX.*Allowed: x86_64.*Next step"):
        refusals.check_system("Linux", "aarch64")


def test_refuses_a_processor_without_avx2() -> None:
    with pytest.raises(refusals.Refusal, match=r"no avx2 flag.*Next step"):
        refusals.check_processor(frozenset({"sse4_2", "avx"}))


def test_reads_the_flags_of_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")

    assert refusals.processor_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert refusals.processor_flags(tmp_path / "absent") == frozenset()


def test_refuses_a_full_disk_naming_the_free_and_the_needed_space(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free

    refusals.check_disk(tmp_path / "not" / "there" / "yet", free // 2)
    with pytest.raises(refusals.Refusal, match=r"GB free for .*not/there/yet.*1000 GB.*--venv"):
        refusals.check_disk(tmp_path / "not" / "there" / "yet", 10**12)


def test_refuses_a_machine_without_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(refusals.Refusal, match=r"no C compiler.*cc, gcc, clang.*Next step"):
        refusals.check_compiler()

    compiler = tmp_path / "clang"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert refusals.check_compiler() == os.fspath(compiler)
