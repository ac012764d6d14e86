"""`make` lists its targets, and the continuous integration entry fails when any of its phases fails."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TARGETS = ("demo", "test", "test-lines", "check", "clean", "help")


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The make that runs this test must not hand its own options down.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=REPOSITORY, env=env, capture_output=True, text=True)


def test_make_alone_lists_the_targets() -> None:
    done = _make()

    assert done.returncode == 0, done.stderr
    assert {f"make {target}" for target in TARGETS} <= {line[:16].rstrip() for line in done.stdout.splitlines()}


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_a_target_installs_what_is_missing_first(target: str) -> None:
    first = _make("--dry-run", target).stdout.splitlines()[0]

    assert "env/setup_env.py --line 0.31.0" in first


def test_test_passes_arguments_to_pytest() -> None:
    assert "-m pytest -n 2 --dist loadfile -k 'a or b' -x\n" in _make("--dry-run", "test", "ARGS=-k 'a or b' -x").stdout


def test_tests_run_in_pytests_own_process_on_demand() -> None:
    assert "-m pytest -n 0 " in _make("--dry-run", "test", "PROCESSES=0").stdout


def test_the_demo_writes_its_report_where_others_look_for_it() -> None:
    last = _make("--dry-run", "demo").stdout.splitlines()[-1]

    assert last == ".venv/bin/glm53 agent-demo --deployment recipes/glm53-cpu.yaml --json build/demo.json"


@pytest.mark.parametrize("failing", ["env", "check", "test"])
def test_the_integration_run_fails_with_its_first_failing_phase(tmp_path: Path, failing: str) -> None:
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "target $1"\n[ "$1" != {failing} ] || exit 2\n')
    make.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    done = subprocess.run([REPOSITORY / ".ci" / "run"], env=env, capture_output=True, text=True)

    assert done.returncode == 2
    assert f"ci: {failing} failed with exit code 2" in done.stderr
    assert done.stdout.splitlines()[-1] == f"target {failing}"


def test_the_integration_run_passes_when_every_phase_passes(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\n")
    make.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    done = subprocess.run([REPOSITORY / ".ci" / "run"], env=env, capture_output=True, text=True)

    assert done.returncode == 0
    assert "ci: everything passed" in done.stdout
