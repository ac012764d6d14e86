"""The size of the FP8 query, and the range in which e4m3 holds it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test")

from flashinfer_nvfp4.errors import FoldRefused  # noqa: E402
from flashinfer_nvfp4.query import QUERY_RANGE, absorbed_query_rms, check_query_range  # noqa: E402


def _e4m3_error(values: Any) -> float:
    """Relative root mean square error of values rounded to e4m3, saturated as the hardware does."""
    rounded = values.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return ((rounded - values).square().mean() / values.square().mean()).sqrt().item()


def test_the_estimate_is_what_a_random_query_measures() -> None:
    """The weights' own product, applied to 20,000 normalized vectors, head by head."""
    torch.manual_seed(0)
    heads, nope, rope, value, rank = 3, 8, 4, 6, 32
    norm = torch.rand(rank) * 2
    q_b = torch.randn(heads, nope + rope, rank) * torch.tensor([0.1, 1.0, 5.0]).view(-1, 1, 1)
    kv_b = torch.randn(heads, nope + value, 512)
    n = torch.randn(20_000, rank)
    n /= n.square().mean(-1, keepdim=True).sqrt()
    query = torch.einsum("thn,hnl->thl", torch.einsum("tr,hnr->thn", n * norm, q_b[:, :nope]), kv_b[:, :nope])
    measured = query.square().mean((0, 2)).sqrt()

    estimate = absorbed_query_rms(
        norm, q_b.flatten(0, 1), kv_b.flatten(0, 1), heads=heads, nope=nope, rope=rope, value=value
    )
    assert estimate.shape == (heads,)
    assert torch.allclose(estimate.float(), measured, rtol=0.02)


@pytest.mark.parametrize("edge", QUERY_RANGE)
def test_inside_the_range_e4m3_is_as_good_as_at_one(edge: float) -> None:
    """For Gaussian and for heavy-tailed queries; a factor 8 beyond either edge is clearly worse."""
    torch.manual_seed(0)
    beyond = edge / 8 if edge < 1 else edge * 8
    for query in (torch.randn(1 << 20), torch.distributions.StudentT(6.0).sample((1 << 20,))):
        unit = query / query.square().mean().sqrt()

        assert _e4m3_error(unit * edge) < 1.05 * _e4m3_error(unit)
        assert _e4m3_error(unit * beyond) > 1.3 * _e4m3_error(unit)


def test_folds_that_keep_or_bring_the_query_into_range_pass() -> None:
    low, high = QUERY_RANGE
    check_query_range("layers.0", torch.tensor([1.0, 0.0]), 4)
    check_query_range("layers.0", torch.tensor([low * 8]), 3)
    check_query_range("layers.0", torch.tensor([high / 8]), -3)
    check_query_range("layers.0", torch.tensor([1e6]), 7)  # still too large, but less so
    check_query_range("layers.0", torch.tensor([1e-6]), -7)
    check_query_range("layers.0", torch.tensor([1e-6, 1e6]), 0)
    check_query_range("layers.0", torch.tensor([low / 100]), 2, scale=0.001)
    check_query_range("layers.0", torch.zeros(3), 9)


@pytest.mark.parametrize(
    ("rms", "exponent", "scale", "message"),
    [
        ([1.0, 0.25], 5, 1.0, r"layers.0: folded by 2\*\*5, 2 of 2 heads.*down to 0.00781.*0.0625 to 32.*exponent 2"),
        ([1.0, 1.0, 0.0], 5, 1.0, r"2 of 2 heads.*exponent 4"),
        ([1.0, 9.0], -3, 1.0, r"folded by 2\*\*-3, 1 of 2 heads.*up to 72.*exponent -1"),
        ([0.06], 1, 1.0, r"down to 0.03.*exponent 0"),
        ([1.0], 1, 16.0, r"down to 0.0312.*exponent 0 for this layer, or another query scale"),
    ],
)
def test_folds_that_push_the_query_out_of_range_are_refused(
    rms: list[float], exponent: int, scale: float, message: str
) -> None:
    with pytest.raises(FoldRefused, match=message):
        check_query_range("layers.0", torch.tensor(rms), exponent, scale)
