"""Rows beyond 2**31 bytes: offsets by exact arithmetic, and whole kernels on a cache of 5 GB of which little exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from kernel_calls import interpreter, missing, values_of

from flashinfer_nvfp4.codec import encode_rows

if why := missing():
    pytest.skip(why, allow_module_level=True)

BLOCK_ROW = 1_965_568  # bytes of a block in all caches of GLM-5.3
BLOCKS = 2600


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    with interpreter() as call:
        yield call


def _offsets(*args: Any) -> list[int]:
    from offset_probe import offsets

    return offsets(*args)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(
    ("apart", "size"),
    [(64 * 352, 64), (BLOCK_ROW, 64), (352, 1), (3 * 2**32, 64), (2**31 * 352, 2**31 - 1), (10**7 * 352, 10**7)],
)
def test_offsets_are_those_of_exact_arithmetic(run: Any, kind: str, apart: int, size: int) -> None:
    """Up to the last slot of int32, and to 2**40 in int64; blocks up to 2**31 rows and 12 GB apart."""
    slots = [0, 1, 63, 64, 65, 95_325, 95_326, 6_100_805, 6_100_806, 2**30, 2**31 - 2, 2**31 - 1]
    slots += [2**31, 2**32 + 7, 2**40 // (apart // 352 // size + 1), 10**10] if kind == "int64" else [5, 6, 7, 8]

    assert run(_offsets, slots, apart, size, kind) == [s // size * apart + s % size * 352 for s in slots]


def _far(rows: bytes) -> dict[str, Any]:
    """Write a row to the first and to the last block of a cache of block rows, gather and attend to both."""
    import mmap

    import triton.runtime.interpreter as interpreting

    from flashinfer_nvfp4.kernels.decode import decode
    from flashinfer_nvfp4.kernels.encode import encode
    from flashinfer_nvfp4.kernels.gather import gather

    # After a launch the interpreter copies every storage onto itself, which would make all of these pages exist.
    interpreting.GridExecutor._restore_args_dev = lambda *_: None
    memory = torch.frombuffer(mmap.mmap(-1, BLOCKS * BLOCK_ROW, flags=mmap.MAP_PRIVATE | 0x4000), dtype=torch.uint8)
    cache = memory.as_strided((BLOCKS, 64, 352), (BLOCK_ROW, 352, 1))
    parts = torch.frombuffer(bytearray(rows), dtype=torch.float32).view(2, 576)
    slots = torch.tensor([3, BLOCKS * 64 - 1])
    encode(parts[:, :512], parts[:, 512:], cache, slots, "search")
    indices = torch.full((1, 32), -1, dtype=torch.int32)
    indices[0, :2] = slots
    out, _ = decode(torch.zeros(1, 8, 576, dtype=torch.bfloat16), cache, indices, 1.0, dtype=torch.float32)
    return {
        "rows": cache[slots // 64, slots % 64].tolist(),
        "gathered": gather(cache, slots).float().tolist(),
        "mean": out[0, 0].tolist(),
    }


def test_kernels_reach_rows_beyond_two_gigabytes(run: Any) -> None:
    torch.manual_seed(0)
    parts = torch.randn(2, 576)
    right = encode_rows(parts[:, :512], parts[:, 512:], "search")
    values = values_of(right)
    got = run(_far, parts.numpy().tobytes())

    assert (BLOCKS * 64 - 1) // 64 * BLOCK_ROW > 2**32
    assert torch.equal(torch.tensor(got["rows"], dtype=torch.uint8), right)
    assert torch.equal(torch.tensor(got["gathered"]), values)
    assert torch.allclose(torch.tensor(got["mean"]), values[:, :512].mean(0), atol=1e-4)
