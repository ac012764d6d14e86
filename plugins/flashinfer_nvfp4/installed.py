"""What of the kernels can be used on this machine, looked up without importing what is not needed.

`facts` only looks; `built` also builds the CUDA kernel, which takes a minute the first time and must happen before a
graph is captured. Both remember their answer for the process.
"""

from __future__ import annotations

import functools
import importlib
import logging
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from flashinfer_nvfp4.cuda_arch import architecture_for
from flashinfer_nvfp4.cuda_build import jit_spec, load
from flashinfer_nvfp4.cuda_check import find_nvcc
from flashinfer_nvfp4.dispatch import Installed
from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.trtllm import missing

__all__ = ["OP_SOURCES", "built", "facts", "op_capacity", "op_folder"]

OP_SOURCES = (
    "nvfp4_sparse_mla_decode.cu",
    "nvfp4_sparse_mla_decode_jit_binding.cu",
    "nvfp4_sparse_mla_decode.cuh",
)
"""What FlashInfer's op is compiled from. Wheels up to 0.7.4 have its Python files without these."""

_log = logging.getLogger("vllm.flashinfer_nvfp4")


@functools.cache
def facts(capability: tuple[int, int]) -> Installed:
    """What can be used on a device of this compute capability, as far as one can tell without building."""
    triton = "" if find_spec("triton") else "Triton is not installed"
    if find_spec("flashinfer") is None:
        absent = "FlashInfer is not installed"
        return Installed(cuda=absent, flashinfer=absent, trtllm=absent, triton=triton)
    compiler = _no_compiler()
    cuda = compiler
    if not cuda:
        try:
            jit_spec(architecture_for(capability))
        except BuildRefused as refused:
            cuda = str(refused)
    return Installed(cuda=cuda, flashinfer=_no_sources() or compiler, triton=triton)


@functools.cache
def built(capability: tuple[int, int]) -> Installed:
    """`facts`, after the CUDA kernel was built and loaded for the device at hand; a failed build is logged."""
    found = facts(capability)
    found = replace(found, trtllm=found.trtllm or missing())
    if found.cuda:
        return found
    try:
        load(architecture_for(capability))
    except Exception as error:
        # Whatever nvcc, ninja or the loader says: the next kernel of the table decodes, and the log tells why.
        _log.error("flashinfer_nvfp4: the CUDA kernel could not be built and is not used: %s", error)
        return replace(found, cuda=f"its build failed ({type(error).__name__}, see the log)")
    return found


def op_folder() -> Path | None:
    """Where FlashInfer keeps its op's kernel sources, if it has the op."""
    spec = find_spec("flashinfer")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "experimental" / "nvfp4_sparse_mla_decode"
    return folder / "csrc" if folder.is_dir() else None


def _no_sources() -> str:
    folder = op_folder()
    if folder is None:
        return "this FlashInfer has no nvfp4_sparse_mla_decode"
    missing = [name for name in OP_SOURCES if not (folder / name).is_file()]
    return f"FlashInfer's wheel lacks the op's kernel sources ({missing[0]})" if missing else ""


def _no_compiler() -> str:
    try:
        find_nvcc()
    except BuildRefused as refused:
        return str(refused)
    if shutil.which("ninja") is None and find_spec("ninja") is None:
        return "ninja is not installed"
    return ""


def op_capacity(device: int) -> dict[int, int] | None:
    """Clusters that FlashInfer's op runs at once on ``device`` by size, or None where it does not tell."""
    module = importlib.import_module("flashinfer.experimental.nvfp4_sparse_mla_decode.backend")
    told = getattr(module, "_capacity", None)
    return dict(told(device)) if told is not None else None
