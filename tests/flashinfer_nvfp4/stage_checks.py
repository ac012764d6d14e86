"""What staging rows and merging parts must do on any device; `test_kernels_stock` and `test_kernels_gpu` run it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_calls import KernelRefused, cache_of, values_of

from flashinfer_nvfp4.codec import encode_rows

BF16, FP8, F32, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32


def _rows(count: int) -> Any:
    torch.manual_seed(0)
    return encode_rows(torch.randn(count, 512), torch.randn(count, 64), "search")


TABLE = torch.tensor([[2, 0, 9], [1, -1, 7], [1, 1, 1]], dtype=I32)
"""Blocks of three requests in a cache of three; 7, 9 and -1 are none of them."""


def _slots(request: int, first: int, count: int) -> Any:
    """Rows of the cache at the positions of a request, -1 where there are none; block size 64."""
    slots = []
    for position in range(first, first + count):
        block = int(TABLE[request, position // 64]) if position < 192 else -1
        slots.append(block * 64 + position % 64 if 0 <= block < 3 else -1)
    return torch.tensor(slots, dtype=torch.int64)


class StageChecks:
    @pytest.mark.parametrize(("dtype", "scale"), [(BF16, 1.0), (FP8, 1.0), (FP8, 0.25)], ids=str)
    def test_windows_are_staged_as_rows_decode(self, kernels: Any, dtype: Any, scale: float) -> None:
        """Windows that begin inside a block, run over missing blocks and past the table, and an empty one; blocks lie
        apart in NaN. Places that no window has stay as they are."""
        rows = _rows(192)
        cache = cache_of(rows, apart=64 * 352 + 4096)
        windows = torch.tensor([(10, 150, 20), (60, 140, 180), (5, 0, 3)], dtype=I32)
        before = torch.full((384, 576), 3.0).to(dtype)
        got = kernels.stage(cache, TABLE, windows, 150, before.clone(), scale=scale)

        right = before.float()
        for request, (first, count, place) in enumerate(windows.tolist()):
            slots = _slots(request, first, count)
            values = (values_of(rows)[slots] / scale).clamp(-448, 448).to(dtype).float()
            right[place : place + count] = torch.where((slots >= 0)[:, None], values, 0.0)
        assert torch.equal(got.float(), right)

    def test_nothing_is_written_outside_the_buffer(self, kernels: Any) -> None:
        """A window that ends behind the buffer, and one that begins before it."""
        rows = _rows(192)
        memory = torch.full((192, 576), 3.0, dtype=BF16)
        windows = torch.tensor([(0, 100, 40), (0, 50, -10), (0, 0, 0)], dtype=I32)
        got = kernels.stage(cache_of(rows), TABLE, windows, 100, memory[64:128])

        assert torch.equal(got[40:].float(), values_of(rows)[_slots(0, 0, 24)])
        assert torch.equal(got[:40].float(), values_of(rows)[_slots(1, 10, 40)])

    def test_no_windows_stage_nothing(self, kernels: Any) -> None:
        before = torch.full((64, 576), 3.0, dtype=BF16)
        none = torch.zeros(0, 3, dtype=I32)

        assert torch.equal(kernels.stage(cache_of(_rows(1)), TABLE[:0], none, 5, before.clone()), before)
        assert torch.equal(kernels.stage(cache_of(_rows(1)), TABLE, TABLE, 0, before.clone()), before)

    @pytest.mark.parametrize("topk", [1, 32, 100, 2048])
    def test_keys_of_the_window_move_to_the_front_in_their_order(self, kernels: Any, topk: int) -> None:
        """Against loops: keys before, in and behind the window, repeated, negative, of requests that are none."""
        torch.manual_seed(topk)
        windows = torch.tensor([(0, 2**20, 7), (1000, 50, 0), (3, 0, 5)], dtype=I32)
        requests = torch.tensor([0, 1, 1, 2, -1, 3, 1], dtype=I32)
        positions = torch.randint(-20, 1100, (7, topk), dtype=I32)
        positions[1, 0], positions[2], positions[6] = 1049, 1050, 999
        positions[0, 0] = 2**31 - 1
        wide = torch.full((7, topk + 9), 5, dtype=I32)
        wide[:, 9:] = positions
        lists, counts = torch.full((7, topk), 77, dtype=I32), torch.full((7,), 77, dtype=I32)
        lists, counts = kernels.staged_indices(wide[:, 9:], requests, windows, lists, counts)

        for token, request in enumerate(requests.tolist()):
            first, count, place = windows[request].tolist() if 0 <= request < 3 else (0, 0, 0)
            keys = [each - first + place for each in positions[token].tolist() if max(first, 0) <= each < first + count]
            assert counts[token] == len(keys)
            assert lists[token].tolist() == keys + [-1] * (topk - len(keys))

    def test_no_tokens_have_no_lists(self, kernels: Any) -> None:
        none = torch.zeros(0, 64, dtype=I32)
        lists, counts = kernels.staged_indices(none, none[:, 0], TABLE, none.clone(), none[:, 0].clone())

        assert (lists.shape, counts.shape) == ((0, 64), (0,))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"cache": torch.zeros(2, 64, 576, dtype=torch.uint8)}, r"cache uint8 \[2, 64, 576\]"),
            ({"block_table": TABLE.long()}, r"block_table int64.*int32 \[3, any\]"),
            ({"block_table": TABLE[:2]}, r"block_table int32 \[2, 3\]"),
            ({"windows": TABLE[:, :2]}, r"windows int32 \[3, 2\].*\[any, 3\]"),
            ({"windows": TABLE.T.contiguous().T}, r"windows with strides.*contiguous"),
            ({"out": torch.zeros(8, 576)}, r"out float32.*bfloat16 or float8_e4m3fn"),
            ({"out": torch.zeros(8, 600, dtype=BF16)[:, :576]}, r"out with strides"),
            ({"longest": -1}, r"longest=-1"),
            ({"scale": 2.0}, r"scale=2\.0.*1 for bfloat16"),
            ({"scale": float("nan")}, r"scale=nan"),
            ({"out": torch.zeros(8, 576, dtype=BF16, device="meta")}, r"out on meta"),
        ],
    )
    def test_what_cannot_be_staged_is_refused(self, kernels: Any, change: Any, message: str) -> None:
        given = {
            "cache": torch.zeros(2, 64, 352, dtype=torch.uint8),
            "block_table": TABLE,
            "windows": TABLE,
            "longest": 1,
            "out": torch.zeros(8, 576, dtype=BF16),
            "scale": 1.0,
            **change,
        }
        with pytest.raises(KernelRefused, match=message):
            kernels.stage(*(given[name] for name in list(given)[:5]), scale=given["scale"])

    @pytest.mark.parametrize(
        ("place", "tensor", "message"),
        [
            (0, torch.zeros(2, 64, dtype=torch.int64), r"positions int64"),
            (0, torch.zeros(64, dtype=I32), r"positions int32 \[64\].*\[any, any\]"),
            (1, torch.zeros(3, dtype=I32), r"requests int32 \[3\].*\[2\]"),
            (2, torch.zeros(3, 2, dtype=I32), r"windows int32 \[3, 2\]"),
            (3, torch.zeros(2, 32, dtype=I32), r"out int32 \[2, 32\].*\[2, 64\]"),
            (3, torch.zeros(64, 2, dtype=I32).T, r"out with strides"),
            (4, torch.zeros(1, dtype=I32), r"counts int32 \[1\].*\[2\]"),
            (4, torch.zeros(2, dtype=I32, device="meta"), r"counts on meta"),
        ],
    )
    def test_lists_of_other_shapes_are_refused(self, kernels: Any, place: int, tensor: Any, message: str) -> None:
        given = [torch.zeros(shape, dtype=I32) for shape in ((2, 64), (2,), (3, 3), (2, 64), (2,))]
        given[place] = tensor
        with pytest.raises(KernelRefused, match=message):
            kernels.staged_indices(*given)


def _halves(values: Any) -> tuple[Any, Any]:
    """The upper and lower 16 bits of float32 ``values``, as a running result has them."""
    bits = values.float().view(I32)
    return (bits >> 16).short().view(BF16), bits.short()


def _joined(upper: Any, lower: Any) -> Any:
    return (upper.view(torch.int16).int() << 16 | lower.int() & 0xFFFF).view(F32)


class MergeChecks:
    @pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
    def test_parts_merge_to_attention_over_all_keys(self, kernels: Any, dtype: Any) -> None:
        """Five parts against float64 over all keys: each result but the last is float32, whatever a part's dtype. A
        part is empty for some heads, and all are for one."""
        torch.manual_seed(0)
        scores = torch.randn(3, 5, 50, dtype=torch.float64) * 3
        scores[0, 0, :10] = scores[1, 1, 10:] = scores[2, 2] = scores[0, 4, 20:30] = -float("inf")
        values = torch.randn(3, 50, 512, dtype=torch.float64)
        parts = []
        for keys in torch.arange(50).split(10):
            lse = scores[..., keys].logsumexp(-1)
            weights = scores[..., keys].softmax(-1).nan_to_num(0.0)
            part = torch.einsum("thk,tkd->thd", weights, values[:, keys]).to(dtype)
            part[lse == -float("inf")] = float("nan")  # what a kernel leaves where there was no key
            parts.append((part, lse))
        # Of what the parts are, not of what they were before they were rounded to their dtype.
        shares = torch.stack([lse for _, lse in parts]).softmax(0).nan_to_num(0.0)
        right = torch.einsum("pth,pthd->thd", shares, torch.stack([part.double().nan_to_num(0.0) for part, _ in parts]))

        out, lower = _halves(torch.full((3, 5, 512), float("nan")))
        lse = torch.full((3, 5), -float("inf"))
        for part, part_lse in parts[:-1]:
            out, lower, lse = kernels.merge_into(out, lower, lse, part, part_lse.float())
        before = _joined(out, lower)
        done, _, lse = kernels.merge_into(out, lower, lse, parts[-1][0], parts[-1][1].float(), last=True)

        assert done.dtype == BF16
        assert (done.double() - right).abs().max() <= 2**-9 * 1.01 * right.abs().max().ceil()
        assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-6)
        again = kernels.merge_into(out, lower, torch.full_like(lse, -float("inf")), *_nothing(out))
        assert (_joined(*again[:2]) == 0).all()
        kept = kernels.merge_into(out, lower, torch.zeros_like(lse), *_nothing(out))
        assert torch.equal(_joined(*kept[:2]), before)

    def test_the_last_part_rounds_to_nearest_and_ties_to_even(self, kernels: Any) -> None:
        """Every place between two bfloat16 values, by torch's own conversion."""
        values = ((torch.arange(1 << 16, dtype=I32) << 4) + 0x3F800000).view(F32).view(-1, 1, 512)
        lse = torch.zeros(values.shape[:2])
        out = kernels.merge_into(*_halves(values), lse, *_nothing(values.bfloat16()), last=True)[0]

        assert torch.equal(out, values.bfloat16())

    def test_nan_goes_on(self, kernels: Any) -> None:
        out, lower = _halves(torch.zeros(1, 2, 512))
        part, part_lse = torch.zeros(1, 2, 512), torch.tensor([[float("nan"), 0.0]])
        part[0, 1, 3] = float("nan")
        for last in (False, True):
            done, rest, lse = kernels.merge_into(out, lower, torch.zeros(1, 2), part, part_lse, last=last)
            found = done if last else _joined(done, rest)

            assert found[0, 0].isnan().all()
            assert lse.isnan().tolist() == [[True, False]]
            assert found[0, 1].isnan().nonzero().tolist() == [[3]]

    def test_no_tokens_merge_to_none(self, kernels: Any) -> None:
        none, sums = torch.zeros(0, 4, 512, dtype=BF16), torch.zeros(0, 4)

        assert kernels.merge_into(none, none.short(), sums, none.clone(), sums.clone())[0].shape == (0, 4, 512)

    @pytest.mark.parametrize(
        ("place", "tensor", "message"),
        [
            (0, torch.zeros(2, 4, 576, dtype=BF16), r"out bfloat16 \[2, 4, 576\].*\[any, any, 512\]"),
            (0, torch.zeros(2, 4, 512), r"out float32"),
            (0, torch.zeros(4, 2, 512, dtype=BF16).transpose(0, 1), r"out with strides"),
            (1, torch.zeros(2, 4, 512, dtype=BF16), r"lower bfloat16"),
            (1, torch.zeros(2, 8, 512, dtype=torch.int16), r"lower int16 \[2, 8, 512\].*\[2, 4, 512\]"),
            (2, torch.zeros(2, 4, dtype=BF16), r"lse bfloat16"),
            (3, torch.zeros(2, 8, 512), r"part float32 \[2, 8, 512\].*\[2, 4, 512\]"),
            (3, torch.zeros(2, 4, 512, dtype=torch.float16), r"part float16"),
            (4, torch.zeros(4, 2).T, r"part_lse with strides"),
            (4, torch.zeros(2, 4, device="meta"), r"part_lse on meta"),
        ],
    )
    def test_other_shapes_are_refused(self, kernels: Any, place: int, tensor: Any, message: str) -> None:
        result = torch.zeros(2, 4, 512, dtype=BF16)
        given = [result, result.short(), torch.zeros(2, 4), result.clone(), torch.zeros(2, 4)]
        given[place] = tensor
        with pytest.raises(KernelRefused, match=message):
            kernels.merge_into(*given)


def _nothing(like: Any) -> tuple[Any, Any]:
    """A part without keys."""
    return torch.full_like(like, float("nan")), torch.full(like.shape[:2], -float("inf"))
