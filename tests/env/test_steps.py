"""Steps keep their commands' output, end what they started, and explain a failure by its likely cause."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import steps
from steps import StepFailed, Steps

# Writes its process id to the file named in the braces and waits to be ended.
SLEEP = "import os, pathlib, time; pathlib.Path({!r}).write_text(str(os.getpid())); time.sleep(99)"


def _steps(folder: Path) -> tuple[Steps, io.StringIO]:
    out = io.StringIO()
    run = Steps(total=2, log=folder / "setup.log", out=out)
    run.begin("trial")
    return run, out


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_each_step_is_announced_with_its_number_and_closed_with_its_time(tmp_path: Path) -> None:
    run, out = _steps(tmp_path)

    with run.step("first"):
        pass
    with run.step("second"):
        run.run([_python("print('hello')")])

    lines = out.getvalue().splitlines()
    assert lines[0].startswith("trial; full output: ")
    assert lines[1] == "[1/2] first"
    assert lines[2].startswith("[1/2] done in ")
    assert lines[3] == "[2/2] second"


def test_output_goes_to_the_log_without_the_notices_of_absent_local_folders(tmp_path: Path) -> None:
    run, out = _steps(tmp_path)

    run.run([_python("print('WARNING: Location \\'file:///x\\' is ignored: absent'); print('kept')")])

    assert "kept\n" in run.log.read_text()
    assert "is ignored: absent\n" not in run.log.read_text().replace("print(", "")
    assert "kept" not in out.getvalue()


def test_commands_run_side_by_side(tmp_path: Path) -> None:
    run, _ = _steps(tmp_path)
    waits = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
    makes = "import pathlib; pathlib.Path({!r}).touch()\n"
    a, b = str(tmp_path / "a"), str(tmp_path / "b")

    run.run([_python(makes.format(a) + waits.format(b)), _python(waits.format(a) + makes.format(b))])

    assert (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


def test_a_long_command_shows_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "HEARTBEAT_S", 0.2)
    run, out = _steps(tmp_path)
    code = "import time; print('Collecting numpy==2 (from -r /some/where)', flush=True); time.sleep(1)"

    run.run([_python(code)])

    assert " s: Collecting numpy==2\n" in out.getvalue()


def test_a_failed_command_ends_the_others_and_shows_its_last_lines(tmp_path: Path) -> None:
    run, _ = _steps(tmp_path)
    pid_file = tmp_path / "pid"
    sleeper = SLEEP.format(str(pid_file))
    failing = (
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(pid_file)!r}).exists(): time.sleep(0.01)\n"
        "time.sleep(0.2); print('the reason'); sys.exit(3)"
    )

    with pytest.raises(StepFailed) as caught:
        run.run([_python(sleeper), _python(failing)])

    assert "exit code 3" in str(caught.value)
    assert "    the reason" in str(caught.value)
    assert str(run.log) in str(caught.value)
    assert not _alive(int(pid_file.read_text()))


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Undo what a shell does to jobs in the background: they ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_ends_the_command_and_all_that_it_started(tmp_path: Path) -> None:
    run, _ = _steps(tmp_path)
    pid_file = tmp_path / "pid"
    grandchild = SLEEP.format(str(pid_file))
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"

    def interrupt_once_it_runs() -> None:
        while not (pid_file.exists() and pid_file.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_once_it_runs).start()
    with pytest.raises(KeyboardInterrupt):
        run.run([_python(child)])

    assert not _alive(int(pid_file.read_text()))


def test_termination_counts_as_an_interrupt() -> None:
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(steps.__file__).parent)!r})\n"
        "from steps import interrupt_on_termination\n"
        "interrupt_on_termination()\n"
        "try:\n os.kill(os.getpid(), signal.SIGTERM)\nexcept KeyboardInterrupt:\n print('interrupted')"
    )

    assert subprocess.run(_python(code), capture_output=True, text=True).stdout == "interrupted\n"


# What pip and Python print, shortened; the wording is theirs.
CAUSES = {
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu "
    "(from versions: 2.13.0)": "PIP_EXTRA_INDEX_URL",
    "ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting dependencies.\n"
    "    The user requested (constraint) torch<=2.14.1": "PIP_EXTRA_INDEX_URL",
    "ERROR: Cannot install numpy==2.3.5 because these package versions have conflicting dependencies.\n"
    "    The user requested (constraint) numpy<2": "constraint file",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "The virtual environment was not created successfully because ensurepip is not available.": "venv package",
    "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...): "
    "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution'": "network",
    "ERROR: Could not find a version that satisfies the requirement mcp==2.3.0 (from versions: 2.2.0)": "mirrors",
    "fatal error: Python.h: No such file or directory": "python3-dev",
    "something nobody has seen": "read the whole log",
}


@pytest.mark.parametrize("output", CAUSES, ids=lambda output: output[:40])
def test_a_known_cause_comes_with_its_fix(output: str) -> None:
    message = steps.explain(["pip", "install"], 1, output, Path("setup.log"))

    assert CAUSES[output] in message.partition("Likely fix: ")[2]


def test_no_package_host_is_named() -> None:
    for _, fix in steps.LIKELY_FIXES:
        assert "://" not in fix
