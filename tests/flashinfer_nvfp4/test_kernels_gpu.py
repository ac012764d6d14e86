"""The kernels on a GPU: the checks that the interpreter passes on the CPU, and what only a GPU can show.

python -m pytest tests/flashinfer_nvfp4/test_kernels_gpu.py -rs
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from decode_checks import SCALE, DecodeChecks
from encode_checks import EncodeChecks
from gather_checks import ContextChecks, GatherChecks
from kernel_calls import Kernels
from prefill_checks import PrefillChecks
from stage_checks import MergeChecks, StageChecks

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device: run this file on a GPU machine", allow_module_level=True)
if torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs compute capability 9.0 or later", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton, which torch's CUDA wheels bring", allow_module_level=True)

from flashinfer_nvfp4.codec import encode_rows
from flashinfer_nvfp4.kernels.decode import decode
from flashinfer_nvfp4.kernels.encode import encode
from flashinfer_nvfp4.kernels.gather import gather


@pytest.fixture(scope="module")
def kernels() -> Any:
    return Kernels("cuda")


class TestEncode(EncodeChecks): ...


class TestGather(GatherChecks): ...


class TestContext(ContextChecks): ...


class TestDecode(DecodeChecks): ...


class TestStage(StageChecks): ...


class TestMerge(MergeChecks): ...


class TestPrefill(PrefillChecks): ...


def _parts(tokens: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(tokens, 512).bfloat16(), torch.randn(tokens, 64).bfloat16()


def test_kernels_reach_rows_beyond_two_gigabytes() -> None:
    latent, rope = _parts(2)
    cache = torch.zeros(1100 * 1_965_568, dtype=torch.uint8, device="cuda")
    cache = cache.as_strided((1100, 64, 352), (1_965_568, 352, 1))
    slots = torch.tensor([3, 1100 * 64 - 1], device="cuda")
    encode(latent.cuda(), rope.cuda(), cache, slots, "search")
    indices = torch.full((1, 32), -1, dtype=torch.int32, device="cuda")
    indices[0, :2] = slots
    out, _ = decode(torch.zeros(1, 8, 576, dtype=torch.bfloat16, device="cuda"), cache, indices, 1.0)

    assert 1099 * 1_965_568 > 2**31
    assert torch.equal(cache[slots // 64, slots % 64].cpu(), encode_rows(latent, rope, "search"))
    right = gather(cache, slots)[:, :512].float().mean(0)
    assert torch.allclose(out[0, 0].float(), right, atol=0.02)


def test_all_kernels_replay_in_a_cuda_graph() -> None:
    """New values in the same tensors: nothing of the first launch is baked in but shapes and the softmax scale."""
    latent, rope = (part.cuda() for part in _parts(64))
    cache = torch.zeros(4, 64, 352, dtype=torch.uint8, device="cuda")
    slots = torch.arange(64, device="cuda")
    query = torch.randn(3, 16, 576, device="cuda").bfloat16()
    indices = torch.randint(0, 64, (3, 512), dtype=torch.int32, device="cuda")

    def step() -> tuple[Any, Any, Any]:
        encode(latent, rope, cache, slots, "search")
        return *decode(query, cache, indices, SCALE), gather(cache, slots)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    latent.neg_()
    query.mul_(0.5)
    indices[:, ::3] = -1
    slots.add_(64)
    graph.replay()
    replayed = [each.clone() for each in recorded]

    for one, other in zip(replayed, step(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("tokens", [1, 7, 64, 128])
def test_planned_splits_agree_with_none(tokens: int) -> None:
    """As many splits as the device is planned to run, against one program a token, at GLM-5.3's top-k."""
    latent, rope = _parts(4096)
    cache = encode_rows(latent, rope).view(64, 64, 352).cuda()
    query = torch.randn(tokens, 16, 576, device="cuda").to(torch.float8_e4m3fn)
    indices = torch.randint(0, 4096, (tokens, 2048), dtype=torch.int32, device="cuda")
    planned = decode(query, cache, indices, SCALE, dtype=torch.float32)
    alone = decode(query, cache, indices, SCALE, dtype=torch.float32, splits=1)

    assert torch.allclose(planned[0], alone[0], rtol=2e-3, atol=2e-3 * alone[0].abs().max().item())
    assert torch.allclose(planned[1], alone[1], rtol=1e-5, atol=1e-5)
