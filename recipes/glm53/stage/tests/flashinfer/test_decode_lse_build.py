import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tvm_ffi
from flashinfer.experimental.nvfp4_sparse_mla_decode.mma.arch import (
    ARCHITECTURES,
    CSRC,
)
from flashinfer.experimental.nvfp4_sparse_mla_decode.mma.jit import (
    gen_nvfp4_sparse_mla_decode_mma_module,
)


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=lambda arch: arch.name)
def test_the_jit_spec_lists_files_that_are_there(arch, monkeypatch):
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "10.0a")
    spec = gen_nvfp4_sparse_mla_decode_mma_module(arch)
    assert spec.name.startswith(f"nvfp4_sparse_mla_decode_mma_{arch.name}_")
    assert [Path(source).name for source in spec.sources] == ["launch.cu", "binding.cu"]
    assert all(Path(source).is_file() for source in spec.sources)
    assert f"-gencode=arch=compute_{arch.name[3:]},code={arch.name}" in spec.extra_cuda_cflags
    assert "-use_fast_math" not in spec.extra_cuda_cflags


def test_every_include_is_there_and_every_header_is_included():
    included = set()
    for path in CSRC.iterdir():
        for name in re.findall(r'#include "(.*)"', path.read_text()):
            assert (path.parent / name).is_file()
            included.add((path.parent / name).name)
    assert included == {path.name for path in CSRC.iterdir() if path.suffix != ".cu"}


def nvcc(folder, *arguments):
    program = shutil.which("nvcc")
    if program is None:
        pytest.skip("needs nvcc 13.0 or later on PATH")
    version = re.search(r"release (\d+)", subprocess.check_output([program, "--version"], text=True))
    if int(version[1]) < 13:
        pytest.skip(f"needs nvcc 13.0 or later, not {version[0]}")
    command = [program, "-std=c++17", "-O3", f"-I{CSRC}", "--keep", "--keep-dir", str(folder), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=lambda arch: arch.name)
def test_kernels_compile_without_spills_and_as_planned(arch, tmp_path):
    told = nvcc(tmp_path, *arch.flags, "-cubin", "-Xptxas", "-v", str(CSRC / "launch.cu"))
    kernels = 2 if arch.clusters else 3
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    registers = [int(found) for found in re.findall(r"Used (\d+) registers", told)]
    code = (tmp_path / "launch.ptx").read_text()
    assert spills == [("0", "0")] * kernels
    assert len(registers) == kernels
    assert max(registers) <= arch.registers
    assert arch.shared_bytes <= arch.limit
    assert code.count("mma.sync.aligned.m16n8k16.") == 2 * arch.instructions["mma"]
    assert code.count("cvt.rn.f16x2.e2m1x2") == 2 * arch.instructions["e2m1"]


def test_the_binding_compiles(tmp_path):
    info = tvm_ffi.libinfo
    folders = [f"-I{folder}" for folder in (info.find_include_path(), info.find_dlpack_include_path())]
    flags = ARCHITECTURES["sm_100a"].flags
    nvcc(tmp_path, *flags, *folders, "-c", str(CSRC / "binding.cu"), "-o", str(tmp_path / "binding.o"))
