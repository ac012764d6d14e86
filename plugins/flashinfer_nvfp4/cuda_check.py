"""Compile the CUDA kernels with nvcc alone, without a GPU, and judge what came out.

ptxas tells registers and spilled bytes of every kernel. Instructions are counted in the machine code where an
``nvdisasm`` is at hand (on PATH or in the triton package), else in the PTX, where they have other names.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from flashinfer_nvfp4.cuda_arch import CSRC, KERNELS, Architecture
from flashinfer_nvfp4.errors import BuildRefused

__all__ = ["Kernel", "compile_kernels", "find_nvcc", "kernels_of", "problems", "read_kernels"]

NVCC_MAJOR = 13
FLAGS = ("-std=c++17", "-O3", "-Werror", "all-warnings")
POLICIES = ("rtn", "four_over_six", "search")
"""By the number that csrc/encode.h gives them."""
COMMON = (
    *(f"decode {query}" for query in ("e4m3", "bfloat16")),
    *(f"encode {policy} {source}" for policy in POLICIES for source in ("bfloat16", "float")),
)


def kernels_of(arch: Architecture) -> tuple[str, ...]:
    """Names of the kernels that an architecture has."""
    return COMMON if arch.clusters else (*COMMON, "merge")


NAMES = {
    "sass": {"mma": r"HMMA\.16816\.F32\b", "e2m1": r"F2FP\.F16\.E2M1\.UNPACK_B\b"},
    "ptx": {"mma": r"mma\.sync\.aligned\.m16n8k16\.", "e2m1": r"cvt\.rn\.f16x2\.e2m1x2\b"},
}


@dataclass(frozen=True)
class Kernel:
    """What a thread of a compiled kernel takes, and how often the instructions of interest occur in its code."""

    name: str
    registers: int
    spilled: int
    counted_in: str = ""
    instructions: Counter[str] = field(default_factory=Counter)


def find_nvcc() -> str:
    """The nvcc on PATH or under CUDA_HOME or /usr/local/cuda; raises `BuildRefused` for none and for an older one."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc") or next(
        (found for home in homes if home and (found := shutil.which(f"{home}/bin/nvcc"))), None
    )
    fix = f"Install CUDA {NVCC_MAJOR}'s compiler and put it on PATH or set CUDA_HOME"
    if nvcc is None:
        raise BuildRefused("nvcc=None", "there is no CUDA compiler on this machine", f"nvcc {NVCC_MAJOR}", fix)
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"release (\d+)\.(\d+)", told)
    if version is None or int(version[1]) < NVCC_MAJOR:
        seen = ".".join(version.groups()) if version else repr(told[:80])
        raise BuildRefused(
            f"{nvcc} {seen}", "it is not one that the kernels were compiled with", f"{NVCC_MAJOR}.0 and later", fix
        )
    return nvcc


def compile_kernels(arch: Architecture, nvcc: str) -> list[Kernel]:
    """Compile the sources with kernels; raises `BuildRefused` with the compiler's words where that fails."""
    with TemporaryDirectory(prefix="nvfp4-") as folder:
        found = [kernel for name in KERNELS for kernel in _compile(CSRC / name, arch, nvcc, Path(folder))]
    return sorted(found, key=lambda kernel: kernel.name)


def _compile(source: Path, arch: Architecture, nvcc: str, folder: Path) -> list[Kernel]:
    cubin = folder / f"{source.stem}.cubin"
    command = [nvcc, *FLAGS, *arch.flags, "-cubin", "-Xptxas", "-v", "--keep", "--keep-dir", str(folder)]
    done = subprocess.run(
        [*command, f"-I{CSRC}", str(source), "-o", str(cubin)], capture_output=True, text=True, cwd=folder
    )
    if done.returncode:
        raise BuildRefused(
            f"nvcc ended with {done.returncode} for {arch.name}",
            done.stderr.strip()[-2000:],
            f"a compiler that knows {arch.name}",
            "Read its words above; another nvcc may come first on PATH",
        )
    disassembler = _nvdisasm()
    if disassembler is None:
        return read_kernels(done.stderr, cubin.with_suffix(".ptx").read_text(), "ptx")
    code = subprocess.run([disassembler, str(cubin)], capture_output=True, text=True, check=True).stdout
    return read_kernels(done.stderr, code, "sass")


def read_kernels(ptxas: str, code: str, language: str) -> list[Kernel]:
    """Kernels from what ``ptxas -v`` told and from the text of their code, ``sass`` or ``ptx``."""
    start = r"^\s*\.section\s+\.text\.(\w+)" if language == "sass" else r"\.entry\s+(\w+)"
    parts = re.split(start, code, flags=re.MULTILINE)
    counts = {
        symbol: Counter({name: len(re.findall(pattern, body)) for name, pattern in NAMES[language].items()})
        for symbol, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    kernels = []
    for told in re.split(r"Compiling entry function '", ptxas)[1:]:
        symbol = told.partition("'")[0]
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
        registers = re.search(r"Used (\d+) registers", told)
        if spills is None or registers is None or symbol not in counts:
            raise BuildRefused(
                f"ptxas told {told[:300]!r}",
                "registers, spills or code are missing",
                "ptxas -v of CUDA 13",
                "Adapt cuda_check.py",
            )
        spilled = int(spills[1]) + int(spills[2])
        kernels.append(Kernel(_name(symbol), int(registers[1]), spilled, language, counts[symbol]))
    return kernels


def problems(arch: Architecture, kernels: list[Kernel]) -> list[str]:
    """One sentence for everything that is not as planned."""
    told = [
        f"{arch.name} has no kernel {name!r}"
        for name in kernels_of(arch)
        if name not in {kernel.name for kernel in kernels}
    ]
    if arch.shared_bytes > arch.limit:
        told.append(f"{arch.name}: decode takes {arch.shared_bytes} bytes of shared memory of {arch.limit}")
    for kernel in kernels:
        if kernel.spilled:
            told.append(f"{arch.name}: {kernel.name} spills {kernel.spilled} bytes a thread")
        if kernel.registers > arch.registers:
            told.append(f"{arch.name}: {kernel.name} takes {kernel.registers} registers, planned are {arch.registers}")
        expected = arch.instructions if kernel.name.startswith("decode") else {}
        for name, count in expected.items():
            if kernel.instructions[name] != count:
                told.append(
                    f"{arch.name}: {kernel.name} has {kernel.instructions[name]} {name} instructions, not {count}"
                )
    return told


def _name(symbol: str) -> str:
    if found := re.search(r"decode_kernelILi\d+ENS_\d+(E4m3|Bfloat16)Query", symbol):
        return f"decode {found[1].lower()}"
    if found := re.search(r"encode_kernelILNS_6PolicyE(\d)ENS_\d+(Bfloat16|Float)Elements", symbol):
        return f"encode {POLICIES[int(found[1])]} {found[2].lower()}"
    return "merge" if "merge_kernel" in symbol else symbol


def _nvdisasm() -> str | None:
    if found := shutil.which("nvdisasm"):
        return found
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    return shutil.which(str(Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"))
