"""The CUDA kernel's tile program on the host, lane by lane, against attention in float64 on the decoded rows.

What the host cannot show is how warps and thread blocks wait for one another; test_cuda_decode_gpu.py does.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from host_tile import HostTile, attention, build, relative_error

from flashinfer_nvfp4.codec import encode_rows

SCALE = 256**-0.5
MOST_ERROR = 0.005
QUERIES = [torch.float8_e4m3fn, torch.bfloat16]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostTile:
    return build(tmp_path_factory.mktemp("host"))


def _cache(rows: int, block_size: int = 64, gap: int = 0, size: float = 1.0) -> Any:
    """A cache of random rows, ``gap`` bytes of 0xFF behind each block: read as a scale, they are NaN."""
    blocks, stride = rows // block_size, block_size * 352 + gap
    cache = torch.full((blocks * stride,), 0xFF, dtype=torch.uint8).as_strided(
        (blocks, block_size, 352), (stride, 352, 1)
    )
    cache.copy_(encode_rows(torch.randn(rows, 512) * size, torch.randn(rows, 64)).view(cache.shape))
    return cache


def _query(tokens: int, heads: int, dtype: Any, size: float = 1.0) -> Any:
    return (torch.randn(tokens, heads, 576) * size).to(dtype)


def _indices(tokens: int, topk: int, rows: int) -> Any:
    return torch.randint(rows, (tokens, topk), dtype=torch.int32)


def _check(host: HostTile, query: Any, cache: Any, indices: Any, ctas: int = 3, keys: int = 32) -> None:
    out, lse = host.decode(query, cache, indices, SCALE, ctas, keys)
    right, right_lse = attention(query, cache, indices, SCALE)
    assert relative_error(out, right) <= MOST_ERROR
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("keys", [32, 16])
@pytest.mark.parametrize("dtype", QUERIES)
@pytest.mark.parametrize("ctas", range(1, 9))
def test_every_cluster_size_attends_as_float64(host: HostTile, ctas: int, dtype: Any, keys: int) -> None:
    torch.manual_seed(ctas)
    _check(host, _query(2, 16, dtype), _cache(512), _indices(2, 320, 512), ctas, keys)


def test_sixteen_blocks_share_a_token_where_there_are_no_clusters(host: HostTile) -> None:
    torch.manual_seed(16)
    _check(host, _query(1, 16, torch.bfloat16), _cache(512), _indices(1, 352, 512), ctas=16, keys=16)


@pytest.mark.parametrize("topk", [32, 64, 96, 2048])
def test_any_multiple_of_32_keys_is_attended_to(host: HostTile, topk: int) -> None:
    """With 32 keys, blocks of the cluster have no stage at all; with 2048, slots go round twenty times."""
    torch.manual_seed(topk)
    _check(host, _query(1, 16, torch.float8_e4m3fn), _cache(4096), _indices(1, topk, 4096), ctas=2 if topk > 64 else 4)


@pytest.mark.parametrize("heads", [1, 8, 16, 24, 32, 128])
def test_heads_are_taken_in_groups_of_16(host: HostTile, heads: int) -> None:
    torch.manual_seed(heads)
    _check(host, _query(1, heads, torch.bfloat16), _cache(128), _indices(1, 96, 128))


@pytest.mark.parametrize("dtype", QUERIES)
def test_minus_one_and_rows_outside_the_cache_are_empty(host: HostTile, dtype: Any) -> None:
    torch.manual_seed(5)
    indices = _indices(3, 128, 256)
    indices[0, ::3] = -1
    indices[1, :40] = torch.tensor([256, 2**31 - 1, -(2**31), -2]).repeat(10).int()
    indices[2, 1:] = -1
    _check(host, _query(3, 16, dtype), _cache(256), indices)


@pytest.mark.parametrize("ctas", [1, 5])
@pytest.mark.parametrize("keys", [32, 16])
def test_a_token_without_keys_has_zeros_and_minus_infinity(host: HostTile, ctas: int, keys: int) -> None:
    torch.manual_seed(6)
    indices = torch.full((2, 160), -1, dtype=torch.int32)
    indices[1, 77] = 3
    cache, query = _cache(64), _query(2, 16, torch.float8_e4m3fn)
    out, lse = host.decode(query, cache, indices, SCALE, ctas, keys)

    assert not out[0].any()
    assert lse[0].tolist() == [-float("inf")] * 16
    assert torch.equal(out[1], attention(query, cache, indices, SCALE)[0][1].bfloat16())


def test_an_output_scale_is_of_the_output_alone(host: HostTile) -> None:
    torch.manual_seed(12)
    case = _query(2, 16, torch.float8_e4m3fn), _cache(64), _indices(2, 96, 64)
    (plain, sums), (scaled, same) = (host.decode(*case, SCALE, 3, out_scale=each) for each in (1.0, -0.25))

    assert torch.equal(scaled, plain * -0.25)
    assert torch.equal(same, sums)


@pytest.mark.parametrize("keys", [32, 16])
def test_the_parts_of_two_ranks_merge_to_the_whole_by_their_log_sum_exp(host: HostTile, keys: int) -> None:
    """As decode context parallelism does it: every other row on each rank, a token with all of its keys on one."""
    torch.manual_seed(13)
    query, cache, indices = _query(3, 24, torch.bfloat16), _cache(256), _indices(3, 192, 256)
    indices[1] -= indices[1] % 2
    parts = [host.decode(query, cache, indices.masked_fill(indices % 2 != rank, -1), SCALE, 3, keys) for rank in (0, 1)]
    outs, sums = (torch.stack([part[which].double() for part in parts]) for which in (0, 1))
    right, right_sums = attention(query, cache, indices, SCALE)

    assert sums[1, 1].eq(-float("inf")).all()
    assert relative_error((outs * sums.softmax(0).unsqueeze(-1)).sum(0), right) <= MOST_ERROR
    torch.testing.assert_close(sums.logsumexp(0), right_sums, atol=1e-4, rtol=1e-5)


def test_a_row_named_twice_counts_twice(host: HostTile) -> None:
    torch.manual_seed(7)
    indices = torch.full((1, 64), -1, dtype=torch.int32)
    indices[0, :9] = torch.tensor([5, 5, 5, 9, 5, 5, 9, 11, 5])
    _check(host, _query(1, 16, torch.bfloat16), _cache(64), indices)


@pytest.mark.parametrize(("block_size", "gap"), [(64, 1_965_568 - 64 * 352), (16, 16), (1, 224)])
def test_blocks_that_lie_apart_are_read_at_their_strides(host: HostTile, block_size: int, gap: int) -> None:
    torch.manual_seed(8)
    _check(host, _query(1, 16, torch.float8_e4m3fn), _cache(192, block_size, gap), _indices(1, 128, 192))


@pytest.mark.parametrize("size", [2.0**-120, 1e-6, 1e4, 1e30])
def test_a_bfloat16_query_of_any_size_keeps_its_precision(host: HostTile, size: float) -> None:
    """Beyond float16's range each head is divided by a power of two, which the scale gives back."""
    torch.manual_seed(9)
    query, cache, indices = _query(1, 16, torch.bfloat16, size), _cache(128), _indices(1, 64, 128)
    out, lse = host.decode(query, cache, indices, SCALE / size, 2)
    right, right_lse = attention(query, cache, indices, SCALE / size)

    assert relative_error(out, right) <= MOST_ERROR
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("size", [0.002, 300.0])
def test_small_and_large_latents_keep_their_precision(host: HostTile, size: float) -> None:
    torch.manual_seed(10)
    _check(host, _query(1, 16, torch.bfloat16, 0.1), _cache(128, size=size), _indices(1, 128, 128))


def test_queries_and_indices_may_be_slices(host: HostTile) -> None:
    torch.manual_seed(11)
    query = torch.randn(4, 40, 640).bfloat16()[::2, 8:24, 64:]
    indices = _indices(4, 192, 128)[::2, 64:160]
    _check(host, query, _cache(128), indices)
