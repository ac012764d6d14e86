"""Write the lock file of a line, in an environment of that or another line that has `uv`:

    .venv/bin/python env/relock.py --line 0.31.0 [--upgrade]

Resolves what `lines.toml` asks for against the package index, once for each supported Python; the second adds
what only it needs, under the pins of the first. Pins of the present lock file stay unless they no longer fit
or `--upgrade` is given. pip's settings for further indexes and local wheels are handed to uv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from lines import Line, line_names, load, normalised
from refusals import SUPPORTED

NEVER = "; python_version < '0'"
HEADER = """\
# Line {line} of the support matrix: every distribution of its environment.
# Written by: .venv/bin/python env/relock.py --line {line}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--line", required=True, help=f"one of {', '.join(line_names())}")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    args = parser.parse_args()
    line = load(args.line)
    kept = {} if args.upgrade or not line.lock.exists() else line.pins()
    pins: dict[str, str] = {}
    for python in SUPPORTED:
        resolved = resolve(line, f"{python[0]}.{python[1]}", pins or kept, strict=bool(pins))
        pins = {**pins, **resolved}
    body = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    line.lock.write_text(HEADER.format(line=line.name) + body)
    print(f"{line.lock}: {len(pins)} distributions")
    return 0


def resolve(line: Line, python: str, pins: dict[str, str], strict: bool) -> dict[str, str]:
    """Return name -> version for one Python; `pins` are preferences, or conditions if `strict`."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, overrides, output = (Path(folder) / name for name in ("wanted.in", "overrides.txt", "lock.txt"))
        constraints = Path(folder) / "constraints.txt"
        known = "".join(f"{name}=={version}\n" for name, version in pins.items())
        output.write_text("" if strict else known)
        constraints.write_text(known if strict else "")
        asked = [f"vllm=={line.vllm}", "torch", *line.requirements]
        wanted.write_text("\n".join(asked) + "\n")
        left_out = [*line.leave_out, *(entry.requires for entry in line.accepted)]
        # Strict: the first Python has settled torch, and an index may lack its wheel for the other one.
        torch = f"torch{NEVER}" if strict else f"torch=={line.torch}"
        # The CUDA build pins one version of apache-tvm-ffi for FlashInfer; the CPU build does not ask for it.
        changed = [torch, "apache-tvm-ffi>=0.1.11", *(name + NEVER for name in left_out)]
        overrides.write_text("\n".join(changed) + "\n")
        command = [
            "uv",
            "pip",
            "compile",
            str(wanted),
            "--override",
            str(overrides),
            "--output-file",
            str(output),
        ]
        command += [
            "--constraint",
            str(constraints),
            "--python-version",
            python,
            "--quiet",
            "--no-python-downloads",
        ]
        command += [
            "--python-platform",
            "x86_64-manylinux_2_31",
            "--no-header",
            "--no-annotate",
            *_pip_settings(),
        ]
        # pip takes the best version of all indexes; uv would stop at the first that knows the name.
        command += ["--index-strategy", "unsafe-best-match"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        lines = [text.partition(";")[0].strip() for text in output.read_text().splitlines()]
    pairs = [text.partition("==") for text in lines if "==" in text]
    return {normalised(name): version for name, _, version in pairs}


def _pip_settings() -> list[str]:
    """Return uv's spelling of pip's find-links and extra-index-url, from its settings and environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options: dict[tuple[str, str], None] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = {"find-links": "--find-links", "extra-index-url": "--extra-index-url"}.get(name.rpartition(".")[2])
        for place in value.strip("'\"").split() if option else ():
            if not place.startswith("file:") or Path(place.removeprefix("file://")).exists():
                options[option or "", place] = None
    return [text for pair in options for text in pair]


if __name__ == "__main__":
    raise SystemExit(main())
