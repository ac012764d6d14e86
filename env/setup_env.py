"""Create this repository's own virtual environment for one line of the support matrix.

    python3 env/setup_env.py --line 0.31.0

Every distribution is pinned in `lock-<line>.txt` and installed without resolving anything. A complete
environment is left as it is, an incomplete or outdated one is finished. Standard library only.
Exit codes: 0 ready, 1 a step failed, 2 this machine or the arguments cannot work, 130 interrupted.
"""

from __future__ import annotations

import sys

import refusals

try:
    refusals.check_python()
except refusals.Refusal as refusal:
    print(f"error: {refusal}", file=sys.stderr)
    raise SystemExit(2) from None

import argparse
import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stamp
import vllm_on_cpu
from construction import Construction
from lines import REPOSITORY, Line, default_line, line_names, load
from steps import StepFailed, interrupt_on_termination


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--line", default=default_line(), help=f"one of {', '.join(line_names())}")
    parser.add_argument("--venv", type=Path, help="folder of the environment (default .venv, or .venv-<line>)")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / ".cache", help="folder of reusable results")
    parser.add_argument("--force", action="store_true", help="delete the environment first and build it anew")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    args = parser.parse_args(argv)
    interrupt_on_termination()
    try:
        line = load(args.line)
        result = set_up(line, args.venv or line.default_venv, args.cache, args.force)
    except (refusals.Refusal, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StepFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "interrupted: every started process has ended; the same command goes on from here",
            file=sys.stderr,
        )
        return 130
    if args.json:
        print(json.dumps(result, indent=1))
    return 0


def set_up(line: Line, venv: Path, cache: Path, force: bool = False) -> dict[str, object]:
    """Make `venv` a complete environment of `line`, whatever it was before, and return what was done.

    Raises `Refusal` if this machine or the folder cannot hold it, `StepFailed` if a step ends with an error.
    """
    began = time.monotonic()
    venv, cache = venv.absolute(), cache.absolute()
    refusals.check_system()
    flags = refusals.processor_flags()
    refusals.check_processor(flags)
    libraries = vllm_on_cpu.wanted_libraries(line, flags)
    goal = stamp.wanted(line, "+".join(libraries), venv)
    changed = False
    if force or not complete(line, venv, goal):
        with only_one(cache) as lock:
            # Another set-up may have finished it meanwhile.
            changed = force or not complete(line, venv, goal)
            if changed:
                Construction(line, venv, cache, goal, libraries, lock).run(anew=force)
    took = time.monotonic() - began
    done = f"set up in {took:.0f} s" if changed else "complete, nothing to do"
    print(f"environment {line.name} in {venv}: {done}", file=sys.stderr)
    return {
        "line": line.name,
        "venv": str(venv),
        "python": str(venv / "bin" / "python"),
        "changed": changed,
        "seconds": round(took, 2),
        "versions": line.pins(),
    }


def complete(line: Line, venv: Path, goal: stamp.Stamp) -> bool:
    """Tell whether `venv` bears the stamp `goal` and still holds what the stamp stands for."""
    return stamp.read(venv) == goal and (venv / "bin" / "python").exists() and not stamp.drift(line, venv)


@contextmanager
def only_one(cache: Path) -> Iterator[int]:
    """Let one set-up at a time use the cache; a second one waits and says so. Yields the locked file."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another set-up runs in this repository; waiting for it to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


if __name__ == "__main__":
    raise SystemExit(main())
