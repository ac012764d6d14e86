"""FP8 quantization against the nearest representable value, found by search."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_cache import decode_e4m3

from vllm_cpu_dsa.quantize import KEY_FLOOR, quantize_groups, quantize_rows


def _nearest(value: np.ndarray) -> np.ndarray:
    """The representable FP8 value next to each float64 ``value``."""
    codes = decode_e4m3(np.arange(256, dtype=np.uint8))
    codes = np.unique(codes[~np.isnan(codes)])
    return codes[np.abs(value[..., None] - codes).argmin(-1)]


def test_values_are_the_nearest_representable_ones_and_scales_the_least_power_of_two_that_fits() -> None:
    x = torch.randn(40, 128, generator=torch.Generator().manual_seed(3)) * torch.logspace(-3, 3, 40)[:, None]

    values, scales = quantize_rows(x, floor=1e-10)

    scale = scales.double().numpy()
    exact = x.double().numpy() / scale
    assert (np.log2(scale) == np.round(np.log2(scale))).all()
    assert (np.abs(exact).max(-1) <= 448).all()
    assert (np.abs(exact).max(-1) > 224).all()
    stored = decode_e4m3(values.view(torch.uint8).numpy())
    assert (np.abs(stored - exact) == np.abs(_nearest(exact) - exact)).all()


def test_a_zero_key_keeps_a_finite_scale_at_the_floor() -> None:
    values, scales = quantize_rows(torch.zeros(1, 128), floor=KEY_FLOOR)

    assert values.float().count_nonzero() == 0
    assert scales.item() == 2.0**-22  # 1e-4 / 448 = 2.2e-7, and 2^-22 = 2.4e-7 is the next power of two


def test_groups_have_the_shapes_that_the_indexer_asks_for() -> None:
    x = torch.randn(6, 256, generator=torch.Generator().manual_seed(0))

    values, scales = quantize_groups(x, 128, column_major_scales=False, use_ue8m0=True)

    assert (values.shape, values.dtype) == ((6, 256), torch.float8_e4m3fn)
    assert (scales.shape, scales.dtype) == ((6, 2), torch.float32)
    second, scale = quantize_rows(x[:, 128:], floor=1e-10)
    assert torch.equal(values[:, 128:].float(), second.float())
    assert torch.equal(scales[:, 1:], scale)


@pytest.mark.parametrize("asked", [{"use_ue8m0": False}, {"use_ue8m0": True, "column_major_scales": True}])
def test_groups_that_only_gpu_kernels_use_are_refused(asked: dict[str, bool]) -> None:
    with pytest.raises(NotImplementedError, match="DSA indexer only.*Load an unquantized model"):
        quantize_groups(torch.ones(1, 128), 128, **asked)
