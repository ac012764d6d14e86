"""The kernels compile, ahead of time and without a GPU, for every architecture that they are for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

from kernel_calls import TRITON, missing

if why := missing():
    pytest.skip(why, allow_module_level=True)


def _run(cache: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # Triton's own settings would change what is compiled; the folder of the cache keeps runs apart.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    path = {"PYTHONPATH": str(TRITON), "TRITON_CACHE_DIR": str(cache), **environ}
    return subprocess.run([sys.executable, *command], env={**inherited, **path}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [("9.0", "decode-bf16"), ("10.0", "decode-fp8"), ("10.3", "decode-bf16-split"), ("12.0", "decode-fp8-split")],
)
def test_the_largest_kernel_compiles_without_spills(tmp_path: Path, arch: str, kernel: str) -> None:
    """The other variants: python -m flashinfer_nvfp4.kernels.compile."""
    done = _run(tmp_path, "-m", "flashinfer_nvfp4.kernels.compile", "--arch", arch, "--kernel", kernel, "--json")

    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["problems"] == []
    [found] = report["kernels"]
    assert (found["arch"], found["kernel"], found["spilled"]) == (arch, kernel, 0)
    assert 0 < found["registers"] <= 255
    assert 0 < found["shared"] <= {"9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99}[arch] * 1024


CODE = """
from flashinfer_nvfp4.kernels.compile import compile_variant

found, compiled = compile_variant("encode-search", "10.0")
print(compiled.asm["ptx"])
"""


def test_encoding_neither_fuses_nor_flushes_nor_approximates(tmp_path: Path) -> None:
    """Any of these would change bytes: an error rounded once, a subnormal made zero, a reciprocal off by one."""
    done = _run(tmp_path, "-c", CODE)

    assert done.returncode == 0, done.stderr[-3000:]
    assert "div.rn.f32" in done.stdout
    assert "fma." not in done.stdout
    assert ".ftz" not in done.stdout
    assert "div.full" not in done.stdout
    assert "approx" not in done.stdout


PROBLEMS = """
from flashinfer_nvfp4.kernels.compile import Resources, problems

print(problems(Resources("12.0", "decode-fp8", 255, 101_377, 16)))
print(problems(Resources("9.0", "decode-fp8", 255, 101_377, 0)))
"""


def test_spills_and_too_much_shared_memory_are_told(tmp_path: Path) -> None:
    done = _run(tmp_path, "-c", PROBLEMS)

    assert done.stdout.splitlines() == [
        "['decode-fp8 for 12.0 spills 16 bytes a thread to local memory', "
        "'decode-fp8 for 12.0 needs 101377 bytes of shared memory of 101376']",
        "[]",
    ], done.stderr


FAILING = """
import sys

from flashinfer_nvfp4.kernels import compile as command

command.VARIANTS["broken"] = command.Variant(command.encode_kernel, {}, {}, {})
sys.argv = ["compile", "--arch", "9.0", "--kernel", "broken"]
sys.exit(command.main())
"""


def test_a_kernel_that_does_not_compile_fails_the_command(tmp_path: Path) -> None:
    done = _run(tmp_path, "-c", FAILING)

    assert done.returncode == 1
    assert "broken for 9.0 does not compile: " in done.stderr


def test_nothing_is_compiled_while_triton_interprets(tmp_path: Path) -> None:
    done = _run(tmp_path, "-m", "flashinfer_nvfp4.kernels.compile", TRITON_INTERPRET="1")

    assert done.returncode == 2
    assert "TRITON_INTERPRET is set, so there is nothing to compile; unset it" in done.stderr


def test_tensors_on_the_cpu_are_refused_where_triton_compiles(tmp_path: Path) -> None:
    code = (
        "import torch\nfrom flashinfer_nvfp4.kernels.gather import gather\n"
        "gather(torch.zeros(1, 64, 352, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))"
    )
    done = _run(tmp_path, "-c", code)

    assert "LaunchRefused: tensors on cpu, Triton compiling" in done.stderr
    assert "start Python with the other setting of TRITON_INTERPRET" in done.stderr
