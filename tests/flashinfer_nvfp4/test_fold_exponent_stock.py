"""The fold's exponent, and multiplying by powers of two, against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.exponents import checksum, scale_exactly, scaled
from flashinfer_nvfp4.fold import fold_exponent

E8M0 = torch.float8_e8m0fnu


def _mean_square(weight: Any) -> Fraction:
    return sum((Fraction(x) ** 2 for x in weight.double().tolist()), start=Fraction(0)) / len(weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_folded_weight_has_a_root_mean_square_near_one(dtype: Any) -> None:
    """Between 2**-0.5 and 2**0.5 exactly, for sizes from 2**-9 to 2**9."""
    torch.manual_seed(0)
    for power in range(-9, 10):
        weight = (torch.rand(512) * torch.rand(512).exp() * 2.0**power).to(dtype)
        folded = _mean_square(weight) * Fraction(4) ** fold_exponent(weight)

        assert Fraction(1, 2) <= folded < 2


@pytest.mark.parametrize("power", range(-20, 21))
def test_a_weight_of_equal_powers_of_two_is_brought_to_one(power: int) -> None:
    weight = torch.full((512,), 2.0**power).bfloat16()

    assert fold_exponent(weight) == -power
    assert fold_exponent(scaled("w", weight, -power)) == 0


def test_the_edges_of_the_range_belong_to_the_lower_end() -> None:
    """Mean squares of exactly 1/2 and 2: the first stays, the second is halved."""
    assert fold_exponent(torch.tensor([1.0, 0.0])) == 0
    assert fold_exponent(torch.tensor([2.0, 0.0])) == -1


def test_the_exponent_does_not_depend_on_the_order_of_the_channels() -> None:
    """Workers sum in different orders; a mean square beside an edge must not come out differently."""
    weight = torch.full((512,), 2.0**-0.5)
    weight[0] = torch.nextafter(weight[0], torch.tensor(1.0))
    exponents = {fold_exponent(weight.roll(i)) for i in range(512)}

    assert len(exponents) == 1
    assert Fraction(1, 2) <= _mean_square(weight) * Fraction(4) ** exponents.pop() < 2


def test_a_weight_of_zeros_has_nothing_to_fold() -> None:
    assert fold_exponent(torch.zeros(512)) == 0
    assert fold_exponent(torch.zeros(0)) == 0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(4).to(torch.float8_e4m3fn), r"float8_e4m3fn.*allowed: bfloat16, float16, float32"),
        (torch.tensor([1.0, float("nan")]), r"inf or NaN.*finite"),
        (torch.tensor([1.0, float("-inf")]), r"inf or NaN.*finite"),
        (torch.full((4,), 1e-30), r"root mean square 1e-30.*2\*\*100.*-64 to 64"),
    ],
)
def test_a_norm_weight_without_a_size_is_refused(weight: Any, message: str) -> None:
    with pytest.raises(FoldRefused, match=message):
        fold_exponent(weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_scaled_values_are_exact_or_refused(dtype: Any) -> None:
    """Every bfloat16 pattern, a seventh of float16, a sample of float32: the exact product, or a refusal."""
    bits = torch.arange(-(1 << 15), 1 << 15, 1 if dtype == torch.bfloat16 else 7).short()
    values = (bits if dtype != torch.float32 else bits.int() * 65536 + 12345).view(dtype)
    values = values[values.isfinite()]
    info = torch.finfo(dtype)
    unit = Fraction(info.smallest_normal) * Fraction(info.eps)  # the spacing of subnormals
    for exponent in (-9, 1):
        products = [Fraction(x) * Fraction(2) ** exponent for x in values.double().tolist()]
        exact = torch.tensor([abs(p) <= Fraction(info.max) and p % unit == 0 for p in products])

        assert [Fraction(x) for x in scaled("w", values[exact], exponent).double().tolist()] == [
            p for p, ok in zip(products, exact.tolist(), strict=True) if ok
        ]
        for bad in values[~exact][:: max(1, int((~exact).sum()) // 20)]:
            with pytest.raises(FoldRefused, match=r"w of .* leave the range of the dtype.*without this layer"):
                scaled("w", bad, exponent)


def test_e8m0_scales_are_shifted_within_their_254_exponents() -> None:
    codes = torch.arange(3, 252, dtype=torch.uint8).view(E8M0)

    assert scaled("s", codes, 3).view(torch.uint8).tolist() == list(range(6, 255))
    assert scaled("s", codes, -3).view(torch.uint8).tolist() == list(range(249))
    for code, exponent in ((0, -1), (254, 1), (255, 1), (255, -1)):
        with pytest.raises(FoldRefused, match="leave the range"):
            scaled("s", torch.tensor([code], dtype=torch.uint8).view(E8M0), exponent)


def test_codes_that_cannot_be_multiplied_are_refused_unless_nothing_is_to_be_done() -> None:
    codes = torch.ones(4).to(torch.float8_e4m3fn)

    assert scaled("w", codes, 0) is codes
    with pytest.raises(FoldRefused, match=r"w of torch.float8_e4m3fn.*float8_e8m0fnu.*another form"):
        scaled("w", codes, 1)


def test_scaling_in_place_keeps_the_tensor_and_its_gradient_flag() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -3.0]))
    scale_exactly("w", weight, 2)

    assert weight.tolist() == [4.0, -12.0]
    assert weight.requires_grad
    assert weight.is_leaf


def test_the_checksum_sees_every_bit_and_place() -> None:
    torch.manual_seed(0)
    weight = torch.randn(1 << 21).bfloat16()
    sums = {checksum(weight), checksum(weight.flip(0)), checksum(weight[:-1]), checksum(-weight), checksum(weight * 2)}
    for place in (0, 5, (1 << 20) - 1, 1 << 20, (1 << 21) - 1):
        changed = weight.clone()
        changed.view(torch.int16)[place] ^= 1
        sums.add(checksum(changed))

    assert len(sums) == 10
    assert checksum(weight.view(2, -1).t().contiguous().t()) == checksum(weight)
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor(2.0))
    assert checksum(torch.empty(0)) == 0
