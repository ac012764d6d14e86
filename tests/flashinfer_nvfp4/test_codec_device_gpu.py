"""The codec on a GPU: the same bytes and values as on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device: run this file on a GPU machine", allow_module_level=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_makes_the_bytes_that_the_cpu_makes(policy: Policy) -> None:
    """Values of all sizes, on and beside the middles of codes, and from normal to saturated."""
    torch.manual_seed(0)
    latent = torch.randn(2048, 512) * torch.exp2(torch.randint(-12, 12, (2048, 1)).float())
    latent[:256] = (latent[:256] * 4).round() / 4
    rope = torch.randn(2048, 64) * 100
    rows = encode_rows(latent, rope, policy)
    on_gpu = encode_rows(latent.cuda(), rope.cuda(), policy)

    assert torch.equal(on_gpu.cpu(), rows)
    for mine, right in zip(decode_rows(on_gpu), decode_rows(rows), strict=True):
        assert torch.equal(mine.cpu(), right)
