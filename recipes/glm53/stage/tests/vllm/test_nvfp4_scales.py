import pytest
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.ops.nvfp4_mla import writer
from vllm.v1.attention.ops.nvfp4_mla.codec import decode_rows, encode_rows

BLOCK = 16
SETTING = "VLLM_NVFP4_MLA_SCALES"


def values(tokens):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(tokens, 512, generator=generator), torch.randn(tokens, 64, generator=generator)


@pytest.mark.parametrize("policy", ["four_over_six", "search"])
def test_the_cache_update_writes_rows_under_the_chosen_policy(policy, monkeypatch):
    monkeypatch.setenv(SETTING, policy)
    latent, rope = values(5)
    cache = torch.zeros(3, BLOCK, 352, dtype=torch.uint8)
    slots = torch.tensor([40, -1, 3, 17])
    ops.concat_and_cache_mla(latent, rope, cache, slots, "nvfp4_ds_mla", torch.ones(1))
    expected = torch.zeros(3 * BLOCK, 352, dtype=torch.uint8)
    expected[[40, 3, 17]] = encode_rows(latent, rope, policy)[[0, 2, 3]]
    assert torch.equal(cache.view(-1, 352), expected)


def test_a_search_leaves_less_error_than_rounding():
    latent, rope = values(64)
    error = {
        policy: (decode_rows(encode_rows(latent, rope, policy))[0] - latent).square().mean().item()
        for policy in ("rtn", "four_over_six", "search")
    }
    assert error["search"] < error["four_over_six"] < error["rtn"]


@pytest.mark.parametrize("policy", ["rtn", "search"])
def test_rows_follow_the_fused_norm_when_they_are_searched_for(policy, monkeypatch):
    monkeypatch.setenv(SETTING, policy)
    latent, rope = values(4)
    cache = torch.zeros(1, BLOCK, 352, dtype=torch.uint8)
    seen = []

    def fused(kv_c, k_pe, slot_mapping, mla_kv_cache, mla_kv_cache_dtype, kv_c_out=None, k_pe_out=None):
        seen.append((mla_kv_cache, mla_kv_cache_dtype))
        if kv_c_out is not None:
            kv_c_out.copy_(2 * kv_c)
            k_pe_out.copy_(-k_pe)

    writer.around_fused_write(fused)(latent, rope, torch.arange(4), cache, "nvfp4_ds_mla")
    if policy == "rtn":
        assert seen == [(cache, "nvfp4_ds_mla")]
        assert not cache.any()
    else:
        assert seen == [(None, "auto")]
        assert torch.equal(cache[0, :4], encode_rows(2 * latent, -rope, "search"))


def test_another_value_is_refused(monkeypatch):
    monkeypatch.setenv(SETTING, "best")
    with pytest.raises(ValueError, match="best"):
        writer.written_policy()
