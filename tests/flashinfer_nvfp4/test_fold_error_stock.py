"""What the fold gains where latents are small, and that real models do not notice it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.codec import Policy, decode_rows, encode_rows
from flashinfer_nvfp4.fold import fold_exponent, fold_model


def _latent(x: Any, weight: Any) -> Any:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight.float()).bfloat16()


def _error(latent: Any, policy: Policy, factor: float = 1.0) -> float:
    decoded, _ = decode_rows(encode_rows(latent, torch.zeros(len(latent), 64), policy))
    return (decoded.double() / factor - latent.double() / factor).square().mean().item()


@pytest.mark.parametrize(("size", "most"), [(0.03, 0.74), (0.01, 0.45), (0.002, 0.30)])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_fold_and_search_leave_less_error_than_stock_rows_of_small_latents(
    size: float, most: float, spread: float
) -> None:
    """Latents as a norm makes them, of this root mean square, with equal channels and with channels from 0.5 to 1.5.

    `rtn` without a fold is the stock row.
    """
    torch.manual_seed(0)
    x, weight = torch.randn(1024, 512), 1 + spread * (torch.rand(512) - 0.5)
    weight = (weight / weight.square().mean().sqrt() * size).bfloat16()
    factor = 2.0 ** fold_exponent(weight)
    latent, folded = _latent(x, weight), _latent(x, weight * factor)

    assert torch.equal(folded, latent * factor)
    assert _error(folded, "search", factor) <= most * _error(latent, "rtn")


def test_no_folded_latent_saturates() -> None:
    """The worst there is: one channel carries all of the weight and all of the token."""
    for size in (1e-6, 1.0, 1e6):
        weight, x = torch.zeros(512), torch.zeros(1, 512)
        weight[9], x[0, 9] = size, -3.0
        folded = _latent(x, weight * 2.0 ** fold_exponent(weight))
        decoded, _ = decode_rows(encode_rows(folded, torch.zeros(1, 64)))

        assert folded.abs().max() < 725
        assert decoded[0, 9] == pytest.approx(folded[0, 9].item(), rel=1 / 15)


def test_a_transformers_glm_model_computes_the_same_logits_to_the_bit() -> None:
    """GlmMoeDsa of transformers in bfloat16 with GLM-5.3's latent width, three layers of different sizes."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: make test")
    torch.manual_seed(0)
    config = transformers.GlmMoeDsaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        q_lora_rank=32,
        qk_nope_head_dim=16,
        v_head_dim=16,
        index_topk=8,
        index_n_heads=2,
        mlp_layer_types=["dense", "dense", "sparse"],
        indexer_types=["full"] * 3,
        layer_types=["deepseek_sparse_attention"] * 3,
        pad_token_id=None,
    )
    model = transformers.GlmMoeDsaForCausalLM(config).bfloat16().eval()
    for layer, size in zip(model.model.layers, (0.002, 0.1, 5.0), strict=True):
        layer.self_attn.kv_a_layernorm.weight.data.normal_().mul_(size)
        layer.self_attn.kv_b_proj.weight.data.normal_().div_(size)
    tokens = torch.randint(0, 64, (1, 24))
    with torch.no_grad():
        before = model(tokens, use_cache=False).logits
        exponents = fold_model(model)
        after = model(tokens, use_cache=False).logits

    assert [exponents[f"model.layers.{i}.self_attn"] for i in range(3)] == [9, 3, -2]
    assert torch.equal(after, before)
    assert before.isfinite().all()
    assert before.std() > 0
