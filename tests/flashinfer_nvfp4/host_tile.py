"""The CUDA sources' arithmetic and tile program, compiled by the machine's C++ compiler, and what judges it."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from flashinfer_nvfp4.codec import POLICIES, decode_rows
from flashinfer_nvfp4.cuda_arch import CSRC, PART_BYTES

__all__ = ["HostTile", "attention", "build", "relative_error"]

FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread")


class Arguments(ctypes.Structure):
    """`nvfp4::Arguments` of csrc/arguments.h."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("query_token_stride", ctypes.c_int64),
        ("query_head_stride", ctypes.c_int64),
        ("cache", ctypes.c_void_p),
        ("block_stride", ctypes.c_int64),
        ("block_size", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("indices", ctypes.c_void_p),
        ("index_stride", ctypes.c_int64),
        ("tokens", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("topk", ctypes.c_int32),
        ("scale_log2", ctypes.c_float),
        ("out_scale", ctypes.c_float),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
    )


class HostTile:
    """Functions of host_tile.cpp on CPU tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, code = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
        library.nvfp4_host_part_bytes.restype = ctypes.c_uint64
        assert library.nvfp4_host_part_bytes() == PART_BYTES
        library.nvfp4_host_encode.argtypes = (pointer, size, ctypes.c_int, pointer)
        library.nvfp4_host_unpack.argtypes = (pointer, size, pointer)
        library.nvfp4_host_decode.argtypes = (ctypes.POINTER(Arguments), ctypes.c_int, ctypes.c_int, ctypes.c_int)
        library.nvfp4_host_row_offset.argtypes = (ctypes.c_int32, ctypes.c_int32, size)
        library.nvfp4_host_row_offset.restype = size
        for name in ("half_code", "bfloat16_code"):
            getattr(library, f"nvfp4_host_{name}").argtypes = (ctypes.c_float,)
            getattr(library, f"nvfp4_host_{name}").restype = code
        for name in ("half_value", "e4m3_value", "e2m1_value"):
            getattr(library, f"nvfp4_host_{name}").argtypes = (code,)
            getattr(library, f"nvfp4_host_{name}").restype = ctypes.c_float
        self.library = library

    def element(self, name: str, value: Any) -> Any:
        """One of the element functions, such as ``half_code``."""
        return getattr(self.library, f"nvfp4_host_{name}")(value)

    def encode(self, latent: Any, rope: Any, policy: str = "rtn") -> Any:
        """Rows, uint8 [n, 352], of [n, 512] and [n, 64]."""
        values = torch.cat((latent.float(), rope.float()), -1).contiguous()
        rows = torch.full((len(values), 352), 0xA5, dtype=torch.uint8)
        self.library.nvfp4_host_encode(values.data_ptr(), len(values), POLICIES.index(policy), rows.data_ptr())
        return rows

    def unpack(self, rows: Any) -> Any:
        """The float16 tile [n, 576] of contiguous rows [n, 352]."""
        tile = torch.empty(len(rows), 576, dtype=torch.float16)
        self.library.nvfp4_host_unpack(rows.data_ptr(), len(rows), tile.data_ptr())
        return tile

    def decode(
        self, query: Any, cache: Any, indices: Any, scale: float, ctas: int, keys: int = 32, out_scale: float = 1.0
    ) -> tuple[Any, Any]:
        """Output, bfloat16 [T, H, 512], and log-sum-exp [T, H], for a cache [blocks, block size, 352]."""
        tokens, heads, _ = query.shape
        out = torch.full((tokens, heads, 512), 7e7, dtype=torch.bfloat16)
        lse = torch.full((tokens, heads), 7e7)
        groups = -(-heads // 16)
        workspace = torch.empty(tokens * groups * ctas * PART_BYTES, dtype=torch.uint8)
        arguments = Arguments(
            query=query.data_ptr(),
            query_token_stride=query.stride(0),
            query_head_stride=query.stride(1),
            cache=cache.data_ptr(),
            block_stride=cache.stride(0),
            block_size=cache.shape[1],
            rows=cache.shape[0] * cache.shape[1],
            indices=indices.data_ptr(),
            index_stride=indices.stride(0),
            tokens=tokens,
            heads=heads,
            topk=indices.shape[1],
            scale_log2=scale / math.log(2),
            out_scale=out_scale,
            out=out.data_ptr(),
            lse=lse.data_ptr(),
            workspace=workspace.data_ptr(),
        )
        bfloat16 = int(query.dtype == torch.bfloat16)
        assert self.library.nvfp4_host_decode(ctypes.byref(arguments), keys, bfloat16, ctas) == 0
        return out, lse


def build(folder: Path) -> HostTile:
    """Compile host_tile.cpp into ``folder``; skips where there is no C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: install g++")
    library = folder / "host_tile.so"
    source = Path(__file__).with_name("host_tile.cpp")
    subprocess.run([compiler, *FLAGS, "-shared", "-fPIC", f"-I{CSRC}", str(source), "-o", str(library)], check=True)
    return HostTile(ctypes.CDLL(str(library)))


def attention(query: Any, cache: Any, indices: Any, scale: float) -> tuple[Any, Any]:
    """Output and log-sum-exp in float64, over the rows as the codec decodes them."""
    out = torch.zeros(*query.shape[:2], 512, dtype=torch.float64)
    lse = torch.full(query.shape[:2], -math.inf, dtype=torch.float64)
    rows = cache.shape[0] * cache.shape[1]
    for token, slots in enumerate(indices.long()):
        slots = slots[(slots >= 0) & (slots < rows)]
        if len(slots):
            found = cache[slots // cache.shape[1], slots % cache.shape[1]]
            keys = torch.cat(decode_rows(found), -1).double()
            scores = query[token].double() @ keys.T * scale
            lse[token] = scores.logsumexp(-1)
            out[token] = scores.softmax(-1) @ keys[:, :512]
    return out, lse


def relative_error(seen: Any, right: Any) -> float:
    """Norm of the difference over the norm of what is right."""
    return float((seen.double() - right).norm() / right.norm())
