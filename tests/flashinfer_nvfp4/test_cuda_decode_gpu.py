"""The CUDA kernels on a GPU: what the host cannot show, namely barriers, clusters, graphs, and hardware conversions.

python -m pytest tests/flashinfer_nvfp4/test_cuda_decode_gpu.py -rs
"""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device: run this file on a GPU machine", allow_module_level=True)

from host_tile import attention, relative_error

from flashinfer_nvfp4.codec import POLICIES, Policy, encode_rows
from flashinfer_nvfp4.cuda_arch import architecture_for
from flashinfer_nvfp4.cuda_build import load
from flashinfer_nvfp4.cuda_decode import decode
from flashinfer_nvfp4.cuda_encode import encode
from flashinfer_nvfp4.errors import BuildRefused

try:
    ARCH = architecture_for(torch.cuda.get_device_capability())
    load(ARCH)
except BuildRefused as refused:
    pytest.skip(str(refused), allow_module_level=True)

SCALE = 256**-0.5
MOST_ERROR = 0.005
QUERIES = [torch.float8_e4m3fn, torch.bfloat16]


def _cache(rows: int, block_size: int = 64, gap: int = 0) -> Any:
    """Random rows on the GPU, with ``gap`` bytes of 0xFF behind each block."""
    blocks, stride = rows // block_size, block_size * 352 + gap
    memory = torch.full((blocks * stride,), 0xFF, dtype=torch.uint8, device="cuda")
    cache = memory.as_strided((blocks, block_size, 352), (stride, 352, 1))
    cache.copy_(encode_rows(torch.randn(rows, 512), torch.randn(rows, 64)).view(cache.shape))
    return cache


def _query(tokens: int, heads: int, dtype: Any) -> Any:
    return torch.randn(tokens, heads, 576).to(dtype).cuda()


def _indices(tokens: int, topk: int, rows: int) -> Any:
    return torch.randint(-rows // 8, rows, (tokens, topk), dtype=torch.int32).clamp_(-1).cuda()


def _check(query: Any, cache: Any, indices: Any, **kwargs: Any) -> None:
    out, lse = decode(query, cache, indices, SCALE, lse=True, **kwargs)
    right, right_lse = attention(query.cpu(), cache.cpu(), indices.cpu(), SCALE)
    assert relative_error(out.cpu(), right) <= MOST_ERROR
    torch.testing.assert_close(lse.cpu().double(), right_lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", QUERIES)
@pytest.mark.parametrize("ctas", range(1, 17))
def test_every_cluster_size_attends_as_float64(ctas: int, dtype: Any) -> None:
    if ctas > ARCH.most_ctas:
        pytest.skip(f"{ARCH.name} shares a token among {ARCH.most_ctas} thread blocks at most")
    torch.manual_seed(ctas)
    _check(_query(5, 16, dtype), _cache(4096), _indices(5, 2048, 4096), num_ctas=ctas)


@pytest.mark.parametrize("tokens", [1, 5, 35, 47, 130, 700])
def test_planned_launches_of_any_size_attend_as_float64(tokens: int) -> None:
    torch.manual_seed(tokens)
    _check(_query(tokens, 16, torch.float8_e4m3fn), _cache(4096), _indices(tokens, 512, 4096))


@pytest.mark.parametrize("heads", [1, 8, 24, 64, 128])
@pytest.mark.parametrize("topk", [32, 96, 2048])
def test_any_number_of_heads_and_keys(heads: int, topk: int) -> None:
    torch.manual_seed(heads)
    _check(_query(3, heads, torch.bfloat16), _cache(2048), _indices(3, topk, 2048))


@pytest.mark.parametrize(("block_size", "gap"), [(64, 1_965_568 - 64 * 352), (16, 16), (1, 224)])
def test_blocks_that_lie_apart_are_read_at_their_strides(block_size: int, gap: int) -> None:
    torch.manual_seed(8)
    _check(_query(2, 16, torch.float8_e4m3fn), _cache(1024, block_size, gap), _indices(2, 512, 1024))


def test_rows_beyond_four_gigabytes_are_read() -> None:
    torch.manual_seed(9)
    cache = _cache(64 * 2300, gap=1_965_568 - 64 * 352)
    indices = torch.full((1, 32), -1, dtype=torch.int32, device="cuda")
    indices[0, :4] = torch.tensor([0, 64 * 1200, 64 * 2299, 64 * 2300 - 1])
    _check(_query(1, 16, torch.bfloat16), cache, indices)


def test_a_token_without_keys_has_zeros_and_minus_infinity() -> None:
    indices = torch.full((2, 2048), -1, dtype=torch.int32, device="cuda")
    out, lse = decode(_query(2, 16, torch.bfloat16), _cache(64), indices, SCALE, lse=True)

    assert not out.any()
    assert lse.flatten().tolist() == [-math.inf] * 32


def test_empty_slots_read_nothing() -> None:
    """All rows are NaN: one that was read and multiplied by zero would show."""
    cache = torch.full((2, 64, 352), 0xFF, dtype=torch.uint8, device="cuda")
    cache[0, 5] = encode_rows(torch.ones(1, 512), torch.ones(1, 64))[0]
    indices = torch.full((1, 64), -1, dtype=torch.int32, device="cuda")
    indices[0, ::3], indices[0, 7] = 128, 5

    assert decode(_query(1, 16, torch.bfloat16), cache, indices, SCALE).eq(1).all()


def test_no_tokens_give_no_output() -> None:
    out, lse = decode(_query(0, 16, torch.bfloat16), _cache(64), _indices(0, 64, 64), SCALE, lse=True)

    assert (out.shape, lse.shape) == ((0, 16, 512), (0, 16))


def test_launches_repeat_bit_for_bit_and_in_a_graph() -> None:
    torch.manual_seed(11)
    query, cache, indices = _query(20, 16, torch.float8_e4m3fn), _cache(4096), _indices(20, 2048, 4096)
    first = decode(query, cache, indices, SCALE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode(query, cache, indices, SCALE)
    for _ in range(50):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, first)
    indices.copy_(_indices(20, 2048, 4096))
    graph.replay()
    assert torch.equal(captured, decode(query, cache, indices, SCALE))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_written_as_the_codec_makes_them(dtype: Any, policy: Policy) -> None:
    torch.manual_seed(12)
    latent = (torch.randn(500, 512) * torch.exp2(torch.randint(-12, 12, (500, 1)).float())).to(dtype)
    rope = (torch.randn(500, 64) * 100).to(dtype)
    slots = torch.randperm(640)[:500]
    slots[::9] = -1
    cache = torch.zeros(10, 64, 352, dtype=torch.uint8)
    right = cache.clone().view(-1, 352)
    right[slots[slots >= 0]] = encode_rows(latent, rope, policy)[slots >= 0]
    written = cache.cuda()
    encode(latent.cuda(), rope.cuda(), written, slots.cuda(), policy)

    assert torch.equal(written.cpu().view(-1, 352), right)
