"""Keep Mooncake's transfer ports off the other interfaces: build `csrc/bind_here.c`, and say how to preload it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["LIBRARY", "VARIABLE", "build", "environment"]

VARIABLE = "MOONCAKE_TIER_BIND"
LIBRARY = "bind_here.so"
"""Name under which a node's folder always has the library, for those who write commands before it is made."""
_SOURCE = Path(__file__).with_name("csrc") / "bind_here.c"


def build(folder: Path) -> Path | None:
    """The library, compiled into a folder unless it is there; None where no compiler makes it."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source = _SOURCE.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.resolve() / f"bind_here-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            part = Path(work) / made.name
            command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(part), str(_SOURCE), "-ldl"]
            if subprocess.run(command, capture_output=True).returncode:
                return None
            part.replace(made)
    return made


def environment(library: Path, host: str) -> dict[str, str]:
    """Variables with which a process listens on `host` where it would listen everywhere."""
    others = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library} {others}".strip(), VARIABLE: host}
