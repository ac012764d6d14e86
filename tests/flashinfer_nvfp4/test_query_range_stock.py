"""The size of the FP8 query, and the range in which e4m3 holds it."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.query import (
    QUERY_RANGE,
    absorbed_query_rms,
    check_queries,
    check_query_range,
    limited_exponents,
)


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


@pytest.mark.parametrize(
    ("rms", "scale"),
    [(float("nan"), 1.0), (float("inf"), 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -1.0), (1.0, float("nan"))],
)
def test_queries_without_a_size_are_refused_instead_of_passed(rms: float, scale: float) -> None:
    with pytest.raises(FoldRefused, match=r"layers.0: queries of root mean square.*no size.*Look for NaN"):
        check_query_range("layers.0", torch.tensor([1.0, rms]), 1, scale)


GEOMETRY = {"heads": 2, "nope": 16, "rope": 8, "value": 24}


def _layer(form: str, size: float = 1.0) -> dict[str, Any]:
    """Weights of a layer whose latent queries have about this root mean square, in a form that checkpoints have."""
    torch.manual_seed(0)
    weights = {"q_b_proj": torch.randn(2 * (16 + 8), 192), "kv_b_proj": torch.randn(2 * (16 + 24), 512) * size / 56}
    tensors: dict[str, Any] = {"layers.0.self_attn.q_a_layernorm.weight": torch.ones(192)}
    for name, weight in weights.items():
        rows, columns = weight.shape
        prefix = f"layers.0.self_attn.{name}.weight"
        if form == "plain":
            tensors[prefix] = weight
        elif form == "blocks":
            scales = torch.rand(1, -(-columns // 128)) + 0.5
            tensors[prefix + "_scale_inv"] = scales * size
            weight = weight / (scales * size).repeat_interleave(128, 1)[:, :columns]
            tensors[prefix] = weight.to(torch.float8_e4m3fn)
        elif form == "mxfp8":
            codes = torch.randint(124, 130, (rows, columns // 32), dtype=torch.uint8)
            powers = 2.0 ** (codes.int() - 127)
            tensors[prefix + "_scale"] = codes + int(math.log2(size))
            tensors[prefix] = (weight / size / powers.repeat_interleave(32, 1)).to(torch.float8_e4m3fn)
        elif form == "nvfp4":
            tensors[prefix + "_scale_2"] = weight.abs().max().view(1) / 24
            tensors[prefix + "_scale"] = (torch.rand(rows, columns // 16) + 4).to(torch.float8_e4m3fn)
            units = tensors[prefix + "_scale"].float().repeat_interleave(16, 1) * tensors[prefix + "_scale_2"]
            signed = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
            codes = (weight / units)[..., None].sub(signed).abs().argmin(-1).to(torch.uint8)
            tensors[prefix] = codes[:, 0::2] | codes[:, 1::2] << 4
        else:
            scales = torch.rand(rows, 1) + 0.5 if form == "channels" else torch.tensor(0.5)
            tensors[prefix + "_scale"] = scales * size
            tensors[prefix] = (weight / (scales * size)).to(torch.float8_e4m3fn)
    return tensors


@pytest.mark.parametrize("form", ["plain", "blocks", "channels", "tensor", "mxfp8", "nvfp4"])
def test_every_layer_is_checked_from_its_weights_in_the_forms_of_checkpoints(form: str) -> None:
    """Queries of size 1 bear a fold by 2**3 and not one by 2**6; those of size 1024 bear 2**12."""
    check_queries(_layer(form), {"layers.0.self_attn": 3}, **GEOMETRY)
    check_queries(_layer(form, 1024.0), {"layers.0.self_attn": 12}, **GEOMETRY)
    with pytest.raises(FoldRefused, match=r"layers.0.self_attn: folded by 2\*\*6, 2 of 2 heads.*exponent [34] "):
        check_queries(_layer(form), {"layers.0.self_attn": 6}, **GEOMETRY)


def test_exponents_are_moved_towards_0_as_far_as_the_query_asks() -> None:
    """Queries of size 1 bear 2**4 and 2**-4, those of 1024 all that makes them smaller, and those of 2**-20 larger."""

    def limited(size: float, exponent: int) -> int:
        return limited_exponents(_layer("plain", size), {"layers.0.self_attn": exponent}, **GEOMETRY)[
            "layers.0.self_attn"
        ]

    assert [limited(1.1, k) for k in (9, 3, 0, -3, -9)] == [4, 3, 0, -3, -4]
    assert [limited(1024.0, k) for k in (12, -1)] == [12, 0]
    assert [limited(2.0**-20, k) for k in (1, -12)] == [0, -12]
    with pytest.raises(FoldRefused, match="no size that a fold could move"):
        limited(float("nan"), 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_b_proj.weight": None}, r"q_b_proj with no scale, weight missing.*Measure the queries"),
        ({"q_a_layernorm.weight": None}, r"q_a_layernorm with no scale, weight missing"),
        (
            {"kv_b_proj.weight_scale_2": torch.ones(1)},
            r"kv_b_proj with weight_scale_2 of torch.float32, weight of torch.float32",
        ),
        ({"kv_b_proj.weight": torch.ones(80, 512).to(torch.float8_e4m3fn)}, r"no scale, weight of torch.float8_e4m3fn"),
        ({"kv_b_proj.weight": torch.ones(81, 512)}, r"kv_b_proj \[81, 512\].*not those of 2 heads.*worker's share"),
        ({"q_b_proj.weight": torch.ones(48, 100)}, r"q_b_proj \[48, 100\] behind a norm of 192"),
    ],
)
def test_queries_of_unknown_size_are_refused(change: dict[str, Any], message: str) -> None:
    tensors = _layer("plain")
    for name, tensor in change.items():
        tensors[f"layers.0.self_attn.{name}"] = tensor
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}

    with pytest.raises(FoldRefused, match=message):
        check_queries(tensors, {"layers.0.self_attn": 1}, **GEOMETRY)
