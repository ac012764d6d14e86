"""Build the CUDA kernels for the device at hand, or check that they compile for devices that need not be there:

    python -m flashinfer_nvfp4.cuda_build --check [--arch sm_100a ...] [--json]

`load` builds with FlashInfer's own JIT machinery: its cache folder, its locks, its ninja. The check needs nvcc only. It
prints registers, spilled bytes, shared memory and instructions of each kernel, and ends with code 1 if one spills,
takes more registers than planned, or does not have the instructions that it should.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import inspect
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flashinfer_nvfp4.compile_report import finish
from flashinfer_nvfp4.cuda_arch import ARCHITECTURES, CSRC, SOURCES, Architecture
from flashinfer_nvfp4.cuda_check import compile_kernels, find_nvcc, problems
from flashinfer_nvfp4.errors import BuildRefused

__all__ = ["jit_spec", "load", "main"]

FLASHINFER = "0.7.2.post1 to 0.7.4"
"""Releases whose `gen_jit_spec` was read."""


@functools.cache
def load(arch: Architecture) -> Any:
    """The module with the functions ``decode``, ``encode`` and ``capacity``, built at the first use on a machine.

    Raises `BuildRefused` where FlashInfer is absent or has another build machinery.
    """
    return jit_spec(arch).build_and_load()


def jit_spec(arch: Architecture) -> Any:
    """FlashInfer's description of the build. Its name holds a digest of the sources, so old builds are not taken."""
    try:
        generate = importlib.import_module("flashinfer.jit.core").gen_jit_spec
        if "use_fast_math" not in inspect.signature(generate).parameters:
            raise AttributeError("gen_jit_spec cannot be told to leave out fast math")
    except (ImportError, AttributeError) as error:
        raise BuildRefused(
            f"flashinfer-python={_installed()} ({error})",
            "it builds the CUDA kernels",
            FLASHINFER,
            "Install it, or use the Triton kernels",
        ) from error
    return generate(
        name=f"flashinfer_nvfp4_{arch.name}_{_digest()}",
        sources=[CSRC / name for name in SOURCES],
        extra_cuda_cflags=arch.flags,
        extra_include_paths=[CSRC],
        use_fast_math=False,  # it would flush the subnormals that small scales are
    )


def _installed() -> str | None:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return None


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(CSRC.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0].rstrip(":"))
    parser.add_argument("--check", action="store_true", required=True, help="compile, print, judge; build nothing")
    parser.add_argument("--arch", nargs="+", choices=list(ARCHITECTURES), default=list(ARCHITECTURES))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    rows, wrong = [], []
    for name in chosen.arch:
        arch = ARCHITECTURES[name]
        try:
            kernels = compile_kernels(arch, find_nvcc())
        except BuildRefused as refused:
            wrong.append(str(refused))
            continue
        wrong += problems(arch, kernels)
        for kernel in kernels:
            shared = arch.shared_bytes if kernel.name.startswith("decode") else 0
            rows.append({"arch": name, "shared": shared, **asdict(kernel)})
            if not chosen.json:
                counts = "  ".join(f"{count} {what}" for what, count in sorted(kernel.instructions.items()))
                numbers = f"{kernel.registers:4} registers {kernel.spilled:4} spilled {shared:7} shared"
                print(f"{name:8} {kernel.name:30} {numbers}  {counts} ({kernel.counted_in})", flush=True)
    return finish(rows, wrong, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
