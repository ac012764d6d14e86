import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

HEADS, DIM, TOKENS = 4, 64, 6


def rotated(points, positions):
    """Float64 rotation of neighbouring pairs, from the definition."""
    pairs = torch.view_as_complex(points.double().view(*points.shape[:-1], DIM // 2, 2))
    frequency = 10000.0 ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    angle = positions.double()[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)
    turned = pairs * turn.view(len(positions), *[1] * (pairs.ndim - 2), DIM // 2)
    return torch.view_as_real(turned).reshape(points.shape)


@pytest.mark.skipif(not current_platform.is_cpu(), reason="the CPU kernel's layout")
@pytest.mark.parametrize("by_head", [False, True])
def test_each_token_is_turned_by_its_position(by_head):
    current_platform.import_kernels()
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(TOKENS, HEADS, DIM, generator=generator)
    key = torch.randn(TOKENS, 1, DIM, generator=generator)
    positions = torch.arange(TOKENS) + 3
    with set_current_vllm_config(VllmConfig()):
        rotary = RotaryEmbedding(DIM, DIM, 64, 10000, False, torch.float32)
    given = (query.clone(), key.clone()) if by_head else (query.flatten(1).clone(), key.flatten(1).clone())
    turned, turned_key = rotary.forward_cpu(positions, *given)
    assert turned.shape == given[0].shape
    assert turned_key.shape == given[1].shape
    assert (turned.view(query.shape) - rotated(query, positions)).abs().max() < 1e-5
    assert (turned_key.view(key.shape) - rotated(key, positions)).abs().max() < 1e-5


@pytest.mark.skipif(not current_platform.is_cpu(), reason="the CPU kernel's layout")
def test_a_query_without_a_key_is_turned():
    current_platform.import_kernels()
    query = torch.randn(TOKENS, HEADS, DIM)
    with set_current_vllm_config(VllmConfig()):
        rotary = RotaryEmbedding(DIM, DIM, 64, 10000, False, torch.float32)
    turned, nothing = rotary.forward_cpu(torch.arange(TOKENS), query.clone())
    assert nothing is None
    assert (turned - rotated(query, torch.arange(TOKENS))).abs().max() < 1e-5
