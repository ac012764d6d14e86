"""What the decode kernel must do on any device; `test_kernels_stock` and `test_kernels_gpu` run it.

The reference is attention in float64 over the rows as the codec decodes them.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kernel_calls import KernelRefused, cache_of, values_of

from flashinfer_nvfp4.codec import encode_rows

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
SCALE = 256**-0.5
BLOCK_ROW = 64 * 352 + 4096


def _rows(count: int = 192, size: float = 1.0) -> Any:
    torch.manual_seed(count)
    return encode_rows(torch.randn(count, 512) * size, torch.randn(count, 64), "search")


def _query(tokens: int, heads: int, dtype: Any = BF16) -> Any:
    torch.manual_seed(tokens * 1000 + heads)
    return torch.randn(tokens, heads, 576).to(dtype)


def _indices(tokens: int, topk: int, slots: int = 192) -> Any:
    """About a quarter of them empty, and some named twice."""
    torch.manual_seed(topk)
    found = torch.randint(0, slots, (tokens, topk), dtype=torch.int32)
    found[torch.rand(tokens, topk) < 0.25] = -1
    return found


def _reference(query: Any, rows: Any, indices: Any, scale: float) -> tuple[Any, Any]:
    """Output and log-sum-exp in float64; indices outside ``rows`` are empty."""
    empty = (indices < 0) | (indices >= len(rows))
    keys = values_of(rows).double()[indices.long().masked_fill(empty, 0)]
    scores = torch.einsum("thd,tkd->thk", query.double(), keys) * scale
    scores = scores.masked_fill(empty[:, None], -float("inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("thk,tkd->thd", weights, keys[..., :512]), scores.logsumexp(-1)


def _check(got: tuple[Any, Any], right: tuple[Any, Any]) -> None:
    """0.5 % of the largest element of a head, 0.4 of it by rounding to bfloat16; 1e-5 of the log-sum-exp."""
    out, lse = got[0].double(), got[1].double()
    error = (out - right[0]).abs().amax(-1) / right[0].abs().amax(-1).clamp(min=1e-30)
    empty = right[1] == -float("inf")

    assert error.max().item() <= (5e-3 if got[0].dtype == BF16 else 5e-4)
    assert torch.equal(lse == -float("inf"), empty)
    difference = (lse - right[1]).abs() / right[1].abs().clamp(min=1)
    assert difference[~empty].max().item() <= 1e-5


class DecodeChecks:
    @pytest.mark.parametrize(
        ("tokens", "heads", "topk", "dtype", "splits", "to"),
        [
            (2, 16, 256, BF16, 1, BF16),
            (2, 16, 256, FP8, 1, BF16),
            (2, 16, 256, BF16, 5, F32),
            (3, 8, 32, FP8, 1, F32),
            (3, 8, 96, BF16, 3, BF16),
            (1, 24, 160, FP8, 2, BF16),
            (1, 64, 64, BF16, 1, BF16),
            (1, 128, 32, FP8, 1, BF16),
            (1, 1, 64, BF16, 2, F32),
            (1, 16, 2048, FP8, 4, BF16),
        ],
    )
    def test_output_and_lse_are_those_of_float64(
        self, kernels: Any, tokens: int, heads: int, topk: int, dtype: Any, splits: int, to: Any
    ) -> None:
        """Heads 1 to 128, top-k 32 to 2048, with and without splits, in block rows that lie apart in NaN."""
        query, rows, indices = _query(tokens, heads, dtype), _rows(), _indices(tokens, topk)
        got = kernels.decode(query, cache_of(rows, apart=BLOCK_ROW), indices, SCALE, dtype=to, splits=splits)

        assert [each.dtype for each in got] == [to, F32]
        _check(got, _reference(query, rows, indices, SCALE))

    @pytest.mark.parametrize("size", [0.004, 300.0], ids=["small", "saturated"])
    def test_rows_of_any_size_are_attended_to(self, kernels: Any, size: float) -> None:
        query, rows, indices = _query(2, 16), _rows(size=size), _indices(2, 64)
        scale = SCALE / max(size, 1.0)

        _check(kernels.decode(query, cache_of(rows), indices, scale), _reference(query, rows, indices, scale))

    def test_every_head_has_a_query_of_its_own_size(self, kernels: Any) -> None:
        """From 2**-40 to 2**40, far outside float16; nearly equal and single keys."""
        query = _query(1, 16).double() * torch.exp2(torch.linspace(-40, 40, 16).round().double())[None, :, None]
        query = query.to(BF16)
        rows, indices = _rows(), _indices(1, 64)

        _check(kernels.decode(query, cache_of(rows), indices, SCALE), _reference(query, rows, indices, SCALE))

    def test_a_query_of_zeros_takes_the_mean(self, kernels: Any) -> None:
        query, rows, indices = torch.zeros(1, 8, 576, dtype=BF16), _rows(), _indices(1, 64)
        out, lse = kernels.decode(query, cache_of(rows), indices, SCALE, dtype=F32)
        kept = indices[0][indices[0] >= 0].long()

        assert torch.allclose(out[0], values_of(rows)[kept, :512].mean(0).expand(8, -1), atol=1e-3)
        assert torch.allclose(lse, torch.full((1, 8), math.log(len(kept))), atol=1e-6)

    @pytest.mark.parametrize("splits", [1, 3])
    def test_tokens_without_keys_have_zeros_and_minus_infinity(self, kernels: Any, splits: int) -> None:
        """All empty, empty but for one key, and a split that is empty beside others that are not."""
        query, rows = _query(3, 16), _rows()
        indices = torch.full((3, 96), -1, dtype=torch.int32)
        indices[1, 70] = 5
        indices[2, :32] = torch.arange(32)
        out, lse = kernels.decode(query, cache_of(rows), indices, SCALE, splits=splits)

        assert out[0].float().abs().max().item() == 0
        assert lse[0].tolist() == [-float("inf")] * 16
        assert torch.equal(out[1], values_of(rows)[5, :512].to(BF16).expand(16, -1))
        _check((out, lse), _reference(query, rows, indices, SCALE))

    @pytest.mark.parametrize("splits", [1, 2])
    def test_an_index_outside_the_cache_is_empty(self, kernels: Any, splits: int) -> None:
        query, cache, indices = _query(2, 16), cache_of(_rows()), _indices(2, 64)
        outside = indices.clone()
        empty = torch.nonzero(indices == -1)
        wild = torch.tensor([192, -2, 2**31 - 1, -(2**31), 193, -1000], dtype=torch.int32)
        outside[empty[:, 0], empty[:, 1]] = wild.repeat(len(empty))[: len(empty)]
        got = kernels.decode(query, cache, outside, SCALE, splits=splits)

        for one, other in zip(got, kernels.decode(query, cache, indices, SCALE, splits=splits), strict=True):
            assert torch.equal(one, other)

    def test_nothing_of_an_empty_slot_is_read(self, kernels: Any) -> None:
        """Row 0, which an unguarded -1 would fall back to, is NaN; a cache without blocks has no byte to read."""
        rows, indices, query = _rows(), _indices(1, 32), _query(1, 8)
        indices[indices == 0] = -1
        right = _reference(query, rows, indices, SCALE)
        rows[0] = 0xFF
        none = torch.empty(0, 64, 352, dtype=torch.uint8)

        _check(kernels.decode(query, cache_of(rows), indices, SCALE), right)
        assert kernels.decode(query, none, indices, SCALE)[1].tolist() == [[-float("inf")] * 8]

    def test_a_row_of_nan_is_seen_by_whoever_attends_to_it(self, kernels: Any) -> None:
        rows = _rows()
        rows[7, 320] = 0x7F
        indices = torch.tensor([[7, *[3] * 31], [3] * 32], dtype=torch.int32)
        out, lse = kernels.decode(_query(2, 8), cache_of(rows), indices, SCALE)

        assert out[0].isnan().all()
        assert lse[0].isnan().all()
        assert out[1].isfinite().all()

    def test_a_key_that_is_named_twice_counts_twice(self, kernels: Any) -> None:
        query, rows = _query(1, 8), _rows()
        once = torch.full((1, 32), -1, dtype=torch.int32)
        once[0, :2] = torch.tensor([3, 9])
        twice = once.clone()
        twice[0, 5:7] = torch.tensor([3, 9])
        single, double = (kernels.decode(query, cache_of(rows), each, SCALE, dtype=F32) for each in (once, twice))

        assert torch.allclose(single[0], double[0], atol=1e-5)
        assert torch.allclose(single[1] + math.log(2), double[1], atol=1e-5)
        _check(double, _reference(query, rows, twice, SCALE))

    def test_blocks_of_any_size_and_distance_give_the_same_bits(self, kernels: Any) -> None:
        """Back to back, in block rows, blocks of 16, and a flat view of rows."""
        query, rows, indices = _query(1, 16), _rows(), _indices(1, 64)
        caches = [cache_of(rows), cache_of(rows, apart=BLOCK_ROW), cache_of(rows, 16), rows.unsqueeze(1)]
        first, *others = (kernels.decode(query, cache, indices, SCALE) for cache in caches)

        for other in others:
            assert torch.equal(other[0], first[0])
            assert torch.equal(other[1], first[1])

    def test_a_token_has_the_same_bits_alone_and_among_drafts(self, kernels: Any) -> None:
        """MTP tokens are further rows of the batch, each with indices of its own."""
        query, cache, indices = _query(4, 16), cache_of(_rows()), _indices(4, 64)
        together = kernels.decode(query, cache, indices, SCALE, splits=2)
        alone = kernels.decode(query[2:3], cache, indices[2:3], SCALE, splits=2)

        assert torch.equal(alone[0], together[0][2:3])
        assert torch.equal(alone[1], together[1][2:3])

    def test_queries_and_indices_may_lie_apart(self, kernels: Any) -> None:
        query, cache, indices = _query(2, 16), cache_of(_rows()), _indices(2, 64)
        wide = torch.full((2, 20, 640), float("nan"), dtype=BF16)
        wide[:, 2:18, 64:] = query
        table = torch.zeros(2, 96, dtype=torch.int32)
        table[:, 32:] = indices
        apart = kernels.decode(wide[:, 2:18, 64:], cache, table[:, 32:], SCALE)

        assert torch.equal(apart[0], kernels.decode(query, cache, indices, SCALE)[0])

    def test_given_outputs_are_filled(self, kernels: Any) -> None:
        query, cache, indices = _query(2, 8), cache_of(_rows()), _indices(2, 64)
        out, lse = torch.full((2, 8, 512), 7.0), torch.full((2, 8), 7.0)
        got = kernels.decode(query, cache, indices, SCALE, out=out, lse=lse)
        right = kernels.decode(query, cache, indices, SCALE, dtype=F32)

        assert torch.equal(got[0], right[0])
        assert torch.equal(got[1], right[1])

    def test_no_tokens_return_at_once(self, kernels: Any) -> None:
        out, lse = kernels.decode(_query(0, 16), cache_of(_rows()), _indices(0, 64), SCALE)

        assert (out.shape, lse.shape) == ((0, 16, 512), (0, 16))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": torch.zeros(2, 16, 512, dtype=BF16)}, r"query bfloat16 \[2, 16, 512\].*\[any, any, 576\]"),
            ({"query": torch.zeros(2, 16, 576)}, r"query float32.*bfloat16 or float8_e4m3fn"),
            ({"query": torch.zeros(2, 0, 576, dtype=BF16)}, r"heads=0.*1 to 128 heads"),
            ({"query": torch.zeros(2, 129, 576, dtype=BF16)}, r"heads=129.*launch more heads in parts"),
            ({"query": torch.zeros(2, 16, 584, dtype=BF16)[..., 4:580]}, r"query at address.*aligned element"),
            ({"query": torch.zeros(2, 576, 16, dtype=BF16).mT}, r"query with strides.*query\.contiguous\(\)"),
            ({"indices": torch.zeros(2, 64, dtype=torch.int64)}, r"indices int64.*int32"),
            ({"indices": torch.zeros(3, 64, dtype=torch.int32)}, r"indices int32 \[3, 64\].*\[2, any\]"),
            ({"indices": torch.zeros(2, 48, dtype=torch.int32)}, r"topk=48.*positive multiple of 32.*with -1"),
            ({"indices": torch.zeros(2, 0, dtype=torch.int32)}, r"topk=0"),
            ({"cache": torch.zeros(2, 64, 352)}, r"cache float32"),
            ({"cache": torch.zeros(2, 64, 352, dtype=torch.uint8, device="meta")}, r"cache on meta"),
            ({"scale": float("nan")}, r"scale=nan.*a finite scale"),
            ({"dtype": torch.float16}, r"out float16.*bfloat16 or float32"),
            ({"out": torch.zeros(2, 16, 576)[..., :512]}, r"out with strides.*contiguous"),
            ({"out": torch.zeros(2, 8, 512)}, r"out float32 \[2, 8, 512\].*\[2, 16, 512\]"),
            ({"lse": torch.zeros(2, 16, dtype=BF16)}, r"lse bfloat16.*float32 \[2, 16\]"),
            ({"lse": torch.zeros(16, 2).T}, r"lse with strides"),
            ({"splits": 3}, r"splits=3: topk=64 has 2 stages.*1 to 2"),
            ({"splits": 0}, r"splits=0"),
        ],
    )
    def test_what_the_kernel_cannot_take_is_refused(self, kernels: Any, change: Any, message: str) -> None:
        arguments = {
            "query": torch.zeros(2, 16, 576, dtype=BF16),
            "cache": torch.zeros(2, 64, 352, dtype=torch.uint8),
            "indices": torch.zeros(2, 64, dtype=torch.int32),
            "scale": SCALE,
            **change,
        }
        positional = [arguments.pop(name) for name in ("query", "cache", "indices", "scale")]

        with pytest.raises(KernelRefused, match=message):
            kernels.decode(*positional, **arguments)
