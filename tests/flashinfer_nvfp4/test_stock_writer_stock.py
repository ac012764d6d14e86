"""`rtn` rows are the stock writer's rows; the other policies leave less error in the same bytes."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM's source: make test", allow_module_level=True)

import torch
from exact_rows import E4M3
from stock_writer import stock_rows

from flashinfer_nvfp4.codec import decode_rows, encode_rows


def _gaussian(n: int) -> Any:
    return torch.randn(n, 512)


def _student_t4(n: int) -> Any:
    return torch.distributions.StudentT(4.0).sample((n, 512))


def _error(rows: Any, latent: Any) -> float:
    return (decode_rows(rows)[0].double() - latent.double()).square().mean().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 0.004, 900.0])
@pytest.mark.parametrize("draw", [_gaussian, _student_t4])
def test_rtn_rows_are_byte_for_byte_the_stock_writers(draw: Any, size: float, dtype: Any) -> None:
    torch.manual_seed(0)
    latent, rope = (draw(16) * size).to(dtype), (torch.randn(16, 64) * size).to(dtype)

    assert torch.equal(encode_rows(latent, rope), stock_rows(latent, rope))


def test_rtn_rows_of_zeros_ties_and_extremes_are_the_stock_writers() -> None:
    scales = torch.tensor([*map(float, E4M3[1:]), 1.0, 1.0])
    values = torch.tensor([6.0, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5.0, 0.0, -0.0, -0.1, 0.5, 7.0, 1e-30, 4.0, -6.0])
    ties = (scales.unsqueeze(-1) * values).view(4, 512)
    sizes = torch.tensor([[0.0], [-0.0], [1e-4], [-1e-4], [1e5], [-1e38]])
    latent = torch.cat((ties, sizes.expand(6, 512)))
    rope = torch.cat((ties[:, :64], sizes.expand(6, 64)))

    assert torch.equal(encode_rows(latent, rope), stock_rows(latent, rope))


@pytest.mark.parametrize(("draw", "search", "four_over_six"), [(_gaussian, 0.74, 0.85), (_student_t4, 0.82, 0.91)])
def test_the_other_policies_leave_less_error_than_the_stock_writer(
    draw: Any, search: float, four_over_six: float
) -> None:
    torch.manual_seed(1)
    latent = draw(2048).bfloat16()
    rope = torch.zeros(2048, 64)
    assert torch.equal(encode_rows(latent[:4], rope[:4]), stock_rows(latent[:4], rope[:4]))
    stock = _error(encode_rows(latent, rope), latent)

    assert _error(encode_rows(latent, rope, "search"), latent) <= search * stock
    assert _error(encode_rows(latent, rope, "four_over_six"), latent) <= four_over_six * stock
