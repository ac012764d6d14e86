"""TRTLLM-gen on staged rows: what `flashinfer_nvfp4.prefill` relies on, on a GPU of compute capability 10.x.

python -m pytest tests/flashinfer_nvfp4/test_staging_gpu.py -rs
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device: run this file on a GPU machine", allow_module_level=True)
if torch.cuda.get_device_capability()[0] != 10:
    pytest.skip("TRTLLM-gen needs compute capability 10.x", allow_module_level=True)

from prefill_checks import SCALE, FloatKernel, head_errors

from flashinfer_nvfp4.staging import GUARD_BYTES, ROWS
from flashinfer_nvfp4.trtllm import TrtllmRows, missing

if why := missing():
    pytest.skip(why, allow_module_level=True)

FP8 = torch.float8_e4m3fn
VLLM_WORKSPACE = 394 << 20
MOST_ERROR = 5.0
"""Percent: TRTLLM-gen rounds probabilities to e4m3."""


def _kernel(tokens: int, heads: int) -> TrtllmRows:
    size = VLLM_WORKSPACE + tokens * heads * ROWS.lse_bytes + GUARD_BYTES
    return TrtllmRows(SCALE, 192, torch.zeros(size, dtype=torch.int8, device="cuda"))


def _case(
    tokens: int, heads: int, topk: int, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, staged rows, lists with their keys at the front, and counts, among them none and all."""
    torch.manual_seed(tokens)
    query = torch.randn(tokens, heads, 576).to(FP8)
    staged = torch.randn(rows, 576).to(FP8)
    counts = torch.randint(0, topk + 1, (tokens,), dtype=torch.int32)
    counts[0], counts[-1] = topk, 0
    lists = torch.randint(0, rows, (tokens, topk), dtype=torch.int32)
    lists[torch.arange(topk) >= counts[:, None]] = -1
    return query.cuda(), staged.cuda(), lists.cuda(), counts.cuda()


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "rows"), [(2, 16, 4096), (512, 16, 65_536), (128, 64, 8192)])
def test_it_attends_to_the_first_keys_of_each_list(tokens: int, heads: int, rows: int, lse: bool) -> None:
    """Against float64; a token without keys has zeros and minus infinity, and the log-sum-exp is natural."""
    case = _case(tokens, heads, 2048, rows)
    out, sums = _kernel(tokens, heads)(*case, lse)
    right, right_sums = FloatKernel(FP8, 1.0, True)(*case, True)

    assert head_errors(out.cpu(), right.nan_to_num(0.0).double().cpu()) < MOST_ERROR
    if lse:
        assert sums is not None
        torch.testing.assert_close(sums, right_sums, atol=2e-2, rtol=1e-3)
    else:
        assert sums is None


def test_a_bfloat16_query_is_rounded_and_clamped() -> None:
    query, staged, lists, counts = _case(4, 16, 512, 1024)
    wide = query.bfloat16()
    wide[0, 0, 0] = 1e4
    kernel = _kernel(4, 16)
    out = kernel(wide, staged, lists, counts, False)[0]
    wide[0, 0, 0] = 448

    assert torch.equal(out, kernel(wide.to(FP8), staged, lists, counts, False)[0])
