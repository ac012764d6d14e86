"""The CUDA kernels compile for every architecture they claim, and the check would tell if they came out badly."""

from __future__ import annotations

import dataclasses
import stat
import sys
import tomllib
import types
from collections import Counter
from pathlib import Path

import pytest

from flashinfer_nvfp4 import cuda_build
from flashinfer_nvfp4.cuda_arch import ARCHITECTURES, CSRC, SOURCES, architecture_for
from flashinfer_nvfp4.cuda_check import Kernel, compile_kernels, find_nvcc, kernels_of, problems, read_kernels
from flashinfer_nvfp4.errors import BuildRefused

SM_100A = ARCHITECTURES["sm_100a"]
SYMBOL = "_ZN5nvfp413decode_kernelILi32ENS_9E4m3QueryELb1EEEvNS_9ArgumentsEi"
PTXAS = f"""ptxas info    : Compiling entry function '{SYMBOL}' for 'sm_100a'
ptxas info    : Function properties for {SYMBOL}
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 120 registers, used 3 barriers, 8 bytes cumulative stack size
"""


def _kernels(**changes: object) -> list[Kernel]:
    """All kernels of sm_100a as planned, and the first decode kernel with ``changes``."""
    counts = Counter(SM_100A.instructions)
    planned = [
        Kernel(name, 128, 0, "ptx", counts if name.startswith("decode") else Counter()) for name in kernels_of(SM_100A)
    ]
    return [dataclasses.replace(planned[0], **changes), *planned[1:]]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_kernels_compile_as_planned(name: str) -> None:
    """Some seconds of nvcc for each; instructions are counted in machine code where nvdisasm is at hand."""
    try:
        nvcc = find_nvcc()
    except BuildRefused as refused:
        pytest.skip(str(refused))
    arch = ARCHITECTURES[name]

    kernels = compile_kernels(arch, nvcc)

    assert problems(arch, kernels) == []
    assert sorted(kernel.name for kernel in kernels) == sorted(kernels_of(arch))


def test_the_plan_is_what_an_mma_tile_and_a_row_need() -> None:
    """Per warp and stage of 32 keys: 9 steps of 16 columns for 4 tiles of 8 keys, 2 steps of 16 keys for 16 tiles of
    8 columns; per lane 64 of a row's 512 e2m1 codes, two an instruction."""
    assert SM_100A.instructions == {"mma": 9 * 4 + 2 * 16, "e2m1": 64 // 2}
    assert ARCHITECTURES["sm_120a"].instructions == {"mma": 9 * 2 + 1 * 16, "e2m1": 64 // 2}
    assert ARCHITECTURES["sm_90a"].instructions["e2m1"] == 0


def test_threads_registers_and_shared_memory_fit_the_architecture() -> None:
    assert {arch.name: (arch.threads, arch.registers) for arch in ARCHITECTURES.values()} == {
        "sm_90a": (512, 128),
        "sm_100a": (512, 128),
        "sm_103a": (512, 128),
        "sm_120a": (384, 168),
    }
    assert all(arch.shared_bytes <= arch.limit for arch in ARCHITECTURES.values())


def test_kernels_that_are_as_planned_have_no_problems() -> None:
    assert problems(SM_100A, _kernels()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spilled": 4}, "decode e4m3 spills 4 bytes"),
        ({"registers": 136}, "takes 136 registers, planned are 128"),
        ({"instructions": Counter(mma=68)}, "has 0 e2m1 instructions, not 32"),
        ({"instructions": Counter(mma=67, e2m1=32)}, "has 67 mma instructions, not 68"),
        ({"name": "decode other"}, "has no kernel 'decode e4m3'"),
    ],
)
def test_a_spill_a_register_or_an_instruction_that_is_not_planned_is_told(
    changes: dict[str, object], sentence: str
) -> None:
    assert any(sentence in told for told in problems(SM_100A, _kernels(**changes)))


def test_too_much_shared_memory_is_told() -> None:
    small = dataclasses.replace(SM_100A, limit=101_376)

    assert "181968 bytes of shared memory of 101376" in problems(small, _kernels())[0]


def test_registers_spills_and_instructions_are_read_from_the_tools_words() -> None:
    code = (
        f'\t.section\t.text.{SYMBOL},"ax",@progbits\n HMMA.16816.F32 R4 ;\n HMMA.16816.F32 R8 ;\n HMMA.16816.F16 R8 ;\n'
    )
    code += " F2FP.F16.E2M1.UNPACK_B R0 ;\n F2FP.F16.E4M3.UNPACK_B R0 ;\n"

    assert read_kernels(PTXAS, code, "sass") == [Kernel("decode e4m3", 120, 28, "sass", Counter(mma=2, e2m1=1))]


def test_words_that_do_not_tell_everything_are_refused() -> None:
    with pytest.raises(BuildRefused, match="registers, spills or code are missing"):
        read_kernels(PTXAS, "", "ptx")


@pytest.mark.parametrize("capability", [(8, 0), (10, 1), (12, 1)])
def test_a_device_without_kernels_is_refused_by_its_compute_capability(capability: tuple[int, int]) -> None:
    with pytest.raises(BuildRefused, match=r"compute capability .* 9\.0, 10\.0, 10\.3, 12\.0"):
        architecture_for(capability)


def test_an_older_compiler_and_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildRefused, match=r"nvcc 12\.8.*allowed: 13\.0 and later"):
        find_nvcc()

    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BuildRefused, match="no CUDA compiler"):
        find_nvcc()


def test_the_compilers_words_come_with_the_refusal(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'unsupported gpu architecture' >&2\nexit 1\n")
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)

    with pytest.raises(BuildRefused, match="unsupported gpu architecture"):
        compile_kernels(SM_100A, str(nvcc))


def test_the_check_ends_with_one_and_the_reason_where_it_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)

    assert cuda_build.main(["--check", "--arch", "sm_100a"]) == 1
    assert "no CUDA compiler" in capsys.readouterr().err


def test_building_without_flashinfer_is_refused_with_the_versions_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer.jit.core", None)

    with pytest.raises(BuildRefused, match=r"flashinfer-python=.*0\.7\.2\.post1 to 0\.7\.4"):
        cuda_build.load(SM_100A)


def test_a_flashinfer_that_always_builds_with_fast_math_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake in the shape of older releases; test_cuda_build_stock.py has the real ones."""
    old = types.ModuleType("flashinfer.jit.core")
    old.gen_jit_spec = lambda name, sources, extra_cuda_cflags=None: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", types.ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.jit", types.ModuleType("flashinfer.jit"))
    monkeypatch.setitem(sys.modules, "flashinfer.jit.core", old)

    with pytest.raises(BuildRefused, match="cannot be told to leave out fast math"):
        cuda_build.jit_spec(SM_100A)


def test_the_sources_travel_with_the_package() -> None:
    """What is in csrc/ and what pyproject.toml puts into a wheel."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["flashinfer_nvfp4"]

    packed = {path for pattern in patterns for path in CSRC.parent.glob(pattern)}
    assert packed == set(CSRC.iterdir())
    assert {CSRC / name for name in SOURCES} <= packed
