"""Which kernel decodes, by hardware, shape and what is installed: facts in, a choice with its reason out.

Standard library only. The order is that of the work a launch does, not of measured times: rows read as they lie in
the cache before rows that are copied first, and a kernel with 16 heads a program before one that pads. A choice is
made once for all launches of a layer, before weights are processed and graphs captured, and holds for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from flashinfer_nvfp4.cuda_arch import ARCHITECTURES
from flashinfer_nvfp4.limits import MAX_HEADS, triton_unfit, unfit
from flashinfer_nvfp4.plan import CLUSTER_SIZES, STAGE_KEYS, legal_cluster_sizes
from flashinfer_nvfp4.settings import BACKEND, KERNELS, Kernel

__all__ = ["GATHER_BYTES", "GROUP", "STOCK_SIZES", "Choice", "Installed", "Shape", "choose"]

GROUP = 16
"""Heads of FlashInfer's op, which more heads are dealt out to and fewer padded to."""
STOCK_SIZES = tuple(size for size in CLUSTER_SIZES if size >= 3)
"""Cluster sizes of FlashInfer's op."""
GATHER_BYTES = 256 << 20
"""Most bytes of selected rows that one launch may copy."""
FP8_ROW = 576

_SM100 = ((10, 0), (10, 3))


@dataclass(frozen=True)
class Shape:
    """What the decode launches of a layer have in common.

    heads: of a launch, so all that decode context parallelism gathers. topk: width of the index rows. lse: whether
    the log-sum-exp is wanted. tokens: most query tokens of a launch. graphs: whether launches are captured.
    """

    capability: tuple[int, int]
    heads: int
    topk: int
    lse: bool
    tokens: int
    graphs: bool


@dataclass(frozen=True)
class Installed:
    """Why each means cannot be used on this machine; empty where it can.

    cuda: the kernel of this package. flashinfer: its NVFP4 op. trtllm: its FP8 decode. triton: the compiler.
    """

    cuda: str = ""
    flashinfer: str = ""
    trtllm: str = ""
    triton: str = ""


@dataclass(frozen=True)
class Choice:
    """The kernel, or None where there is none and stock must read the rows; and why.

    fp8_query: whether the kernel takes its query in e4m3 alone; the others get it in bfloat16, unrounded.
    """

    kernel: Kernel | None
    reason: str
    fp8_query: bool = False


def choose(shape: Shape, installed: Installed, wanted: str = "auto") -> Choice:
    """The first of `KERNELS` that fits, or ``wanted`` alone if it names one.

    The reason names what was passed over and why.
    """
    candidates = KERNELS if wanted == "auto" else (cast(Kernel, wanted),)
    over = []
    for kernel in candidates:
        if why := _FITS[kernel](shape, installed):
            over.append(f"not {kernel}: {why}")
            continue
        reason = f"{_WHAT[kernel]}" if wanted == "auto" else f"{BACKEND}={wanted}"
        return Choice(kernel, "; ".join([reason, *over]), kernel in ("flashinfer", "gather"))
    return Choice(None, "; ".join(over))


def _cuda(shape: Shape, installed: Installed) -> str:
    if shape.capability not in {arch.capability for arch in ARCHITECTURES.values()}:
        return f"it is not compiled for compute capability {_dotted(shape.capability)}"
    return unfit(shape.heads, shape.topk) or installed.cuda


def _triton(shape: Shape, installed: Installed) -> str:
    return triton_unfit(shape.capability, shape.heads, shape.topk) or installed.triton


def _flashinfer(shape: Shape, installed: Installed) -> str:
    if shape.capability not in _SM100:
        return f"it is built for 10.0 and 10.3, not {_dotted(shape.capability)}"
    if shape.lse:
        return "it has no log-sum-exp, which decode context parallelism merges by"
    if shape.heads > MAX_HEADS or (shape.heads > GROUP and shape.heads % GROUP):
        return f"{shape.heads} heads are no whole groups of {GROUP}"
    if unfit(GROUP, shape.topk) or not legal_cluster_sizes(shape.topk, dict.fromkeys(STOCK_SIZES, 1)):
        return f"a top-k of {shape.topk} does not give its clusters 3 to 32 stages of {STAGE_KEYS} keys"
    return installed.flashinfer


def _gather(shape: Shape, installed: Installed) -> str:
    if shape.capability[0] != 10:
        return f"TRTLLM-gen decode needs compute capability 10.x, not {_dotted(shape.capability)}"
    if (copied := shape.tokens * shape.topk * FP8_ROW) > GATHER_BYTES:
        return f"{shape.tokens} tokens copy {copied >> 20} MiB of rows, more than {GATHER_BYTES >> 20}"
    return installed.triton or installed.trtllm


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


_FITS: Mapping[Kernel, Callable[[Shape, Installed], str]] = {
    "cuda": _cuda,
    "flashinfer": _flashinfer,
    "triton": _triton,
    "gather": _gather,
}
_WHAT: Mapping[Kernel, str] = {
    "cuda": "this package's CUDA kernel reads rows as they lie in the cache",
    "flashinfer": "FlashInfer's op reads rows as they lie in the cache",
    "triton": "this package's Triton kernel reads rows as they lie in the cache",
    "gather": "the selected rows are copied as FP8 for TRTLLM-gen",
}
