"""Compile the kernels for GPUs that need not be there, and fail on what would not run well:

    python -m flashinfer_nvfp4.kernels.compile [--arch 9.0 10.0 10.3 12.0] [--kernel NAME ...] [--json]

Prints registers, shared memory, and the bytes of registers spilled to local memory of each variant. Ends with code 1
if one does not compile, spills, or needs more shared memory than a block of that architecture may have.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flashinfer_nvfp4.codec import POLICIES
from flashinfer_nvfp4.compile_report import finish
from flashinfer_nvfp4.cuda_arch import ARCHITECTURES
from flashinfer_nvfp4.kernels import decode, encode, gather, merge, stage
from flashinfer_nvfp4.kernels.arguments import ALIGNMENT, interpreted
from flashinfer_nvfp4.kernels.decode import decode_kernel, merge_kernel
from flashinfer_nvfp4.kernels.encode import encode_kernel
from flashinfer_nvfp4.kernels.gather import gather_kernel
from flashinfer_nvfp4.kernels.merge import merge_into_kernel
from flashinfer_nvfp4.kernels.stage import indices_kernel, stage_kernel

__all__ = ["SHARED_BYTES", "VARIANTS", "Resources", "Variant", "compile_variant", "problems"]

SHARED_BYTES = {f"{major}.{minor}": arch.limit for arch in ARCHITECTURES.values() for major, minor in [arch.capability]}
"""Most shared memory of a thread block by compute capability."""

BLOCK_SIZE = 64


@dataclass(frozen=True)
class Variant:
    """A kernel as it is launched: types of its arguments by name, constants, warps and other options."""

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: registers a thread, shared bytes a block, local bytes a thread."""

    arch: str
    kernel: str
    registers: int
    shared: int
    spilled: int


def _encode(policy: str) -> Variant:
    types = {"latent": "*bf16", "rope": "*bf16", "slots": "*i64", "cache": "*u8"}
    constants = {"BLOCK_SIZE": BLOCK_SIZE, "POLICY": policy, "TOKENS": 1}
    return Variant(encode_kernel, types, constants, encode.LAUNCH)


def _gather(out: str) -> Variant:
    types = {"cache": "*u8", "slots": "*i64", "out": out, "multiplier": "fp32"}
    return Variant(gather_kernel, types, {"BLOCK_SIZE": BLOCK_SIZE, "ROWS": gather.ROWS}, gather.LAUNCH)


def _decode(query: str, out: str) -> Variant:
    types = {"query": query, "cache": "*u8", "indices": "*i32", "out": out, "lse": "*fp32", "scale_log2": "fp32"}
    return Variant(decode_kernel, types, {"BLOCK_SIZE": BLOCK_SIZE, "HEADS": decode.TILE}, decode.LAUNCH)


def _merge(splits: int) -> Variant:
    types = {"partial": "*fp32", "partial_lse": "*fp32", "out": "*bf16", "lse": "*fp32"}
    return Variant(merge_kernel, types, {"SPLITS": splits}, decode.MERGE_LAUNCH)


def _stage(out: str) -> Variant:
    types = {"cache": "*u8", "block_table": "*i32", "windows": "*i32", "out": out, "multiplier": "fp32"}
    return Variant(stage_kernel, types, {"BLOCK_SIZE": BLOCK_SIZE, "ROWS": gather.ROWS}, gather.LAUNCH)


def _indices(topk: int) -> Variant:
    types = dict.fromkeys(("positions", "requests", "windows", "out", "counts"), "*i32")
    return Variant(indices_kernel, types, {"TOPK": topk}, stage.INDEX_LAUNCH)


def _merge_parts(last: bool) -> Variant:
    types = {"out": "*bf16", "lower": "*i16", "lse": "*fp32", "part": "*bf16", "part_lse": "*fp32"}
    return Variant(merge_into_kernel, types, {"LAST": last}, merge.MERGE_LAUNCH)


VARIANTS: dict[str, Variant] = {
    **{f"encode-{policy}": _encode(policy) for policy in POLICIES},
    "gather-bf16": _gather("*bf16"),
    "gather-fp8": _gather("*u8"),
    **{
        f"decode-{name}{split}": _decode(query, out)
        for name, query in (("bf16", "*bf16"), ("fp8", "*u8"))
        for split, out in (("", "*bf16"), ("-split", "*fp32"))
    },
    **{f"merge-{splits}": _merge(splits) for splits in (2, 16)},
    "stage-bf16": _stage("*bf16"),
    "stage-fp8": _stage("*u8"),
    "staged-indices": _indices(2048),
    "merge-parts": _merge_parts(last=False),
    "merge-last-part": _merge_parts(last=True),
}

UNALIGNED = {
    *("count", "capacity", "heads", "stages", "splits", "slot_stride", "block_stride"),
    *("blocks", "columns", "places", "table_stride", "column_stride", "topk", "request_count"),
    *("position_stride", "column_stride", "request_stride"),
}
"""Integers that need not be multiples of 16; every pointer and every other stride is one."""


def compile_variant(name: str, arch: str) -> tuple[Resources, Any]:
    """Compile a variant for compute capability ``arch``; what it takes, and Triton's result with its ``asm``."""
    variant = VARIANTS[name]
    arguments = variant.kernel.arg_names
    signature = {a: "constexpr" if a in variant.constants else variant.types.get(a, "i32") for a in arguments}
    aligned = [["tt.divisibility", ALIGNMENT]]
    attrs = {
        (place,): aligned
        for place, argument in enumerate(arguments)
        if signature[argument].startswith("*") or (signature[argument] == "i32" and argument not in UNALIGNED)
    }
    source = ASTSource(variant.kernel, signature, dict(variant.constants), attrs)
    target = GPUTarget("cuda", int(arch.replace(".", "")), 32)
    compiled = triton.compile(source, target=target, options=dict(variant.options))
    registers, spilled = _usage(compiled.asm["cubin"])
    return Resources(arch, name, registers, compiled.metadata.shared, spilled), compiled


def problems(found: Resources) -> list[str]:
    """One sentence for everything that keeps a compiled kernel from running, or from running well."""
    limit = SHARED_BYTES[found.arch]
    told = []
    if found.spilled:
        told.append(f"{found.kernel} for {found.arch} spills {found.spilled} bytes a thread to local memory")
    if found.shared > limit:
        told.append(f"{found.kernel} for {found.arch} needs {found.shared} bytes of shared memory of {limit}")
    return told


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, as Triton's copy of cuobjdump tells."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout)
    if found is None:
        raise ValueError(f"{tool} told no registers: {told.stdout!r}; allowed: REG:n STACK:n. Adapt to its new output.")
    return int(found[1]), int(found[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(",")[0])
    parser.add_argument("--arch", nargs="+", choices=list(SHARED_BYTES), default=list(SHARED_BYTES))
    parser.add_argument("--kernel", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if interpreted(encode_kernel):
        parser.error("TRITON_INTERPRET is set, so there is nothing to compile; unset it")
    rows, wrong = [], []
    for name in arguments.kernel:
        for arch in arguments.arch:
            try:
                found, _ = compile_variant(name, arch)
            except Exception as error:  # whatever Triton, LLVM or ptxas raise: the others are still of interest
                wrong.append(f"{name} for {arch} does not compile: {type(error).__name__}: {error}")
                continue
            rows.append(asdict(found))
            wrong += problems(found)
            if not arguments.json:
                numbers = f"{found.registers:4} registers  {found.shared:6} shared  {found.spilled:4} spilled"
                print(f"{name:20} {arch:5} {numbers}", flush=True)
    return finish(rows, wrong, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
