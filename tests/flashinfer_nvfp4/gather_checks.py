"""What the gathering kernel must do on any device; `test_kernels_stock` and `test_kernels_gpu` run it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_calls import KernelRefused, cache_of, values_of

from flashinfer_nvfp4.codec import encode_rows
from flashinfer_nvfp4.rowformat import SCALE_OFFSET

FP8 = torch.float8_e4m3fn


def _rows(count: int, size: float = 1.0) -> Any:
    torch.manual_seed(0)
    return encode_rows(torch.randn(count, 512) * size, torch.randn(count, 64), "search")


def _every_product() -> Any:
    """Rows, [512, 352], with every pair of an e2m1 code and a finite scale code, and every RoPE code."""
    rows = torch.zeros(512, 352, dtype=torch.uint8)
    codes = torch.arange(256).repeat(2)
    rows[:, :256] = codes[:, None] % 256
    rows[:, 256:320] = torch.arange(64) + 64 * (torch.arange(512)[:, None] // 2 % 4)
    scales = torch.arange(32) + 32 * (torch.arange(512)[:, None] % 8)
    # Both halves of byte c under scales 32 k to 32 k + 31, for k = c mod 8; the second half of rows shifts k.
    rows[256:, SCALE_OFFSET:] = ((scales[256:] + 128) % 256).to(torch.uint8)
    rows[:256, SCALE_OFFSET:] = scales[:256].to(torch.uint8)
    return rows


class GatherChecks:
    def test_bfloat16_is_exactly_what_rows_decode_to(self, kernels: Any) -> None:
        """All element codes and all scales, NaN included, signed zeros too."""
        rows = torch.cat((_every_product(), _rows(100)))
        got = kernels.gather(cache_of(rows), torch.arange(len(rows)))
        right = values_of(rows).bfloat16()

        assert got.dtype == torch.bfloat16
        assert torch.equal(got.isnan(), right.isnan())
        assert torch.equal(got.nan_to_num().view(torch.int16), right.nan_to_num().view(torch.int16))

    @pytest.mark.parametrize("scale", [1.0, 0.25, 8.0, 0.3])
    def test_fp8_is_rounded_once_and_saturated(self, kernels: Any, scale: float) -> None:
        """Against torch's conversion of the float32 quotient; with a scale of 1 RoPE codes come through as they are."""
        rows = torch.cat((_every_product(), _rows(60, 0.01), _rows(60, 300.0)))
        got = kernels.gather(cache_of(rows), torch.arange(len(rows)), FP8, scale=scale)
        right = (values_of(rows) * torch.tensor(1.0 / scale)).clamp(-448, 448).to(FP8)
        codes, expected = got.view(torch.uint8), right.view(torch.uint8)
        nan = right.float().isnan()

        assert torch.equal(got.float().isnan(), nan)
        assert torch.equal(codes[~nan], expected[~nan])
        if scale == 1:
            assert torch.equal(codes[:, 512:][~nan[:, 512:]], rows[:, 256:320][~nan[:, 512:]])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=str)
    @pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
    def test_rows_come_in_the_order_of_their_slots_and_empty_slots_are_zero(
        self, kernels: Any, dtype: Any, kind: Any
    ) -> None:
        """Also repeated ones, out of blocks that lie apart in NaN; what is outside the cache is not read either."""
        rows = _rows(130)
        cache = cache_of(rows, apart=64 * 352 + 4096)
        slots = torch.tensor([129, -1, 64, 3, 3, 192, -5, 63, 2**31 - 1, -(2**31), 0], dtype=kind)
        got = kernels.gather(cache, slots, dtype)
        inside = torch.tensor([0, 2, 3, 4, 7, 10])
        outside = torch.tensor([1, 5, 6, 8, 9])

        assert torch.equal(got[inside].float(), values_of(rows)[slots[inside].long()].to(dtype).float())
        assert got[outside].view(torch.uint8).unique().tolist() == [0]

    def test_nothing_of_an_empty_slot_is_read(self, kernels: Any) -> None:
        """In a cache without blocks every slot is empty, and there is no byte to read."""
        got = kernels.gather(torch.empty(0, 64, 352, dtype=torch.uint8), torch.tensor([-1, 0, 5]))

        assert torch.equal(got, torch.zeros(3, 576, dtype=torch.bfloat16))

    def test_no_slots_give_no_rows(self, kernels: Any) -> None:
        got = kernels.gather(cache_of(_rows(2)), torch.zeros(0, dtype=torch.int32))

        assert got.shape == (0, 576)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"slots": torch.zeros(2)}, r"slots float32 \[2\].*int64 or int32"),
            ({"slots": torch.zeros(2, 2, dtype=torch.int64)}, r"slots int64 \[2, 2\].*\[any\]"),
            ({"cache": torch.zeros(2, 64, 576, dtype=torch.uint8)}, r"cache uint8 \[2, 64, 576\]"),
            ({"dtype": torch.float16}, r"out float16 \[2, 576\].*bfloat16 or float8_e4m3fn"),
            ({"out": torch.zeros(2, 512, dtype=torch.bfloat16)}, r"out bfloat16 \[2, 512\].*\[2, 576\]"),
            ({"out": torch.zeros(2, 600, dtype=torch.bfloat16)[:, :576]}, r"out with strides \[600, 1\].*contiguous"),
            ({"dtype": FP8, "out": torch.zeros(2, 576, dtype=torch.bfloat16)}, r"dtype=torch.float8_e4m3fn with out"),
            ({"scale": 2.0}, r"scale=2\.0.*1 for bfloat16"),
            ({"dtype": FP8, "scale": 0.0}, r"scale=0\.0.*positive, finite"),
            ({"dtype": FP8, "scale": float("nan")}, r"scale=nan"),
            ({"dtype": FP8, "scale": float("inf")}, r"scale=inf"),
            ({"slots": torch.zeros(2, dtype=torch.int64, device="meta")}, r"slots on meta"),
        ],
    )
    def test_what_the_kernel_cannot_take_is_refused(self, kernels: Any, change: Any, message: str) -> None:
        arguments = {"cache": torch.zeros(2, 64, 352, dtype=torch.uint8), "slots": torch.arange(2), **change}

        with pytest.raises(KernelRefused, match=message):
            kernels.gather(arguments.pop("cache"), arguments.pop("slots"), **arguments)


class ContextChecks:
    def test_slots_of_several_requests_follow_their_block_tables(self, kernels: Any) -> None:
        """Against loops: chunks that begin inside a request, an empty request, more rows than tokens."""
        table = torch.tensor([[5, 2, 9], [1, -1, -1], [7, 0, 3]], dtype=torch.int32)
        starts = torch.tensor([0, 150, 150, 190], dtype=torch.int32)
        first = torch.tensor([10, 0, 60], dtype=torch.int32)
        right = [int(table[0, p // 64]) * 64 + p % 64 for p in range(10, 160)]
        right += [int(table[2, p // 64]) * 64 + p % 64 for p in range(60, 100)]

        assert kernels.context_slots(table, starts, 195, 64, first).tolist() == [*right, *[-1] * 5]

    def test_positions_outside_a_table_are_empty(self, kernels: Any) -> None:
        table = torch.tensor([[4, -1]], dtype=torch.int32)
        slots = kernels.context_slots(table, torch.tensor([0, 200]), 200, 64)

        assert slots.tolist() == [*range(256, 320), *[-1] * 136]
        assert kernels.context_slots(table[:, :0], torch.tensor([0, 3]), 3, 64).tolist() == [-1] * 3
        assert kernels.context_slots(table[:0], torch.tensor([0]), 2, 64).tolist() == [-1] * 2

    @pytest.mark.parametrize(("starts", "size", "first"), [([0], 64, None), ([0, 2], 0, None), ([0, 2], 64, [1, 2])])
    def test_tables_of_different_batches_are_refused(self, kernels: Any, starts: Any, size: int, first: Any) -> None:
        with pytest.raises(KernelRefused, match=r"do not describe the same requests.*one batch"):
            kernels.context_slots(
                torch.zeros(1, 2, dtype=torch.int32),
                torch.tensor(starts),
                2,
                size,
                None if first is None else torch.tensor(first),
            )

    @pytest.mark.parametrize(
        ("rows", "dtypes"),
        [
            (-1, (torch.int32, torch.int32, torch.int32)),
            (2, (torch.float32, torch.int32, torch.int32)),
            (2, (torch.int32, torch.float32, torch.int32)),
            (2, (torch.int32, torch.int32, torch.bool)),
        ],
    )
    def test_tables_of_other_dtypes_and_negative_rows_are_refused(self, kernels: Any, rows: int, dtypes: Any) -> None:
        shapes = ((1, 2), 2, 1)
        table, starts, first = (torch.zeros(size, dtype=kind) for size, kind in zip(shapes, dtypes, strict=True))

        with pytest.raises(KernelRefused, match=rf"rows={rows}.*int32 or int64, 0 rows or more"):
            kernels.context_slots(table, starts, rows, 64, first)
