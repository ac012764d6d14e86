"""vLLM's own NVFP4 cache writer, run on the CPU: the statements of its Triton kernel with `tl` standing for torch.

The kernel itself needs an SM100 GPU, because it converts with inline PTX. So the branch that writes a row is taken
out of the installed source as it is and executed; the names of `triton.language` that it uses are given here. The two
conversions that the hardware does are done by rational arithmetic: ``cvt.rn.satfinite.e2m1x2.f32`` as the PTX ISA
describes it, and the cast to ``float8e4nv``, which compiles to ``cvt.rn.satfinite.e4m3x2.f32``.

One thing is not seen here: on a GPU the division ``1.0 / scale`` is ``div.full.f32``, which may be off by two units
in the last place. That can move an element only if it lies that near to the middle of two codes.
"""

from __future__ import annotations

import ast
import importlib.util
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from exact_rows import e2m1_code, e4m3_code

__all__ = ["stock_rows"]


class _Lanes(torch.Tensor):
    """A Triton value: a tensor whose casts are the hardware's."""

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Any:
        if bitcast:
            return self.view(dtype)
        if dtype == torch.float8_e4m3fn:
            codes = [e4m3_code(Fraction(x)) | (0x80 if _negative(x) else 0) for x in self.flatten().tolist()]
            return _lanes(torch.tensor(codes, dtype=torch.uint8).view(dtype).reshape(self.shape))
        return super().to(dtype)


def _lanes(tensor: torch.Tensor) -> _Lanes:
    return tensor.as_subclass(_Lanes)


def _negative(x: float) -> bool:
    return str(x).startswith("-")


def _e2m1(x: float) -> int:
    return e2m1_code(Fraction(x)) | (8 if _negative(x) else 0)


def _inline_asm(text: str, constraints: str, args: list[torch.Tensor], **_: Any) -> _Lanes:
    """The one instruction that the writer uses: its second source goes to the low half of the byte."""
    assert "cvt.rn.satfinite.e2m1x2.f32 t, $2, $1;" in text
    assert constraints == "=r,f,f"
    low, high = (tensor.tolist() for tensor in args)
    return _lanes(torch.tensor([_e2m1(a) | _e2m1(b) << 4 for a, b in zip(low, high, strict=True)], dtype=torch.int32))


def _language(cache: torch.Tensor) -> SimpleNamespace:
    """`triton.language` as far as the writer uses it; pointers are offsets into ``cache``."""

    def store(pointer: torch.Tensor, value: torch.Tensor) -> None:
        assert value.element_size() == 1
        cache[pointer.as_subclass(torch.Tensor)] = value.as_subclass(torch.Tensor).view(torch.uint8)

    return SimpleNamespace(
        abs=torch.abs,
        arange=lambda start, end: _lanes(torch.arange(start, end)),
        float32=torch.float32,
        float8e4nv=torch.float8_e4m3fn,
        inline_asm_elementwise=_inline_asm,
        int32=torch.int32,
        max=lambda x, axis, keep_dims: x.amax(axis, keepdim=keep_dims),
        maximum=lambda x, y: torch.maximum(x, torch.tensor(y)),
        reshape=torch.reshape,
        store=store,
        sum=lambda x, axis: x.sum(axis),
        uint8=torch.uint8,
        where=torch.where,
    )


def _writer() -> Any:
    """The compiled branch `if MLA_CACHE_NVFP4:` of the installed kernel."""
    [package] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr,misc]
    tree = ast.parse((Path(package) / "models/deepseek_v32/common/kernels.py").read_text())
    [branch] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "MLA_CACHE_NVFP4"
    ]
    assert isinstance(branch.body.pop(), ast.Return)
    return compile(ast.Module(branch.body, type_ignores=[]), "stock writer", "exec")


def stock_rows(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Rows, uint8 [n, 352], that stock vLLM writes for normalized ``latent`` [n, 512] and rotated ``rope`` [n, 64]."""
    writer = _writer()
    rows = torch.zeros(len(latent), 352, dtype=torch.uint8)
    for i, (kv_c, k_pe) in enumerate(zip(latent.float(), rope.float(), strict=True)):
        kernel = {
            "KV_DIM": 512,
            "MLA_NUM_TILES": 32,
            "MLA_TILE_DIM": 16,
            "dim_off": torch.arange(32),
            "kv_c": _lanes(kv_c),
            "mla_block_idx": 0,
            "mla_block_off": i,
            "mla_cache_block_stride": 0,
            "mla_cache_entry_stride": 352,
            "mla_cache_ptr": 0,
            "r1": _lanes(k_pe[0::2]),
            "r2": _lanes(k_pe[1::2]),
            "tl": _language(rows.view(-1)),
        }
        exec(writer, kernel)
    return rows
