import pytest
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.ops.nvfp4_mla.codec import encode_rows
from vllm.v1.attention.ops.nvfp4_mla.errors import LaunchRefused

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK = 16


def decoded(row):
    """One row by the published format: 512 e2m1 nibbles, 64 e4m3 RoPE codes, 32 e4m3 scales in columns of 8."""
    data = row.tolist()
    codes = row[256:352].view(torch.float8_e4m3fn).float().tolist()
    values = []
    for i in range(512):
        nibble = data[i // 2] >> 4 * (i % 2) & 15
        block = i // 16
        scale = codes[64 + 8 * (block % 4) + block // 4]
        values.append((-1 if nibble & 8 else 1) * E2M1[nibble & 7] * scale)
    return values + codes[:64]


def gathered(table, starts, first, rows, dtype=torch.bfloat16, cache_dtype="nvfp4_ds_mla"):
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(4 * BLOCK, 512, generator=generator)
    rope = torch.randn(4 * BLOCK, 64, generator=generator)
    cache = encode_rows(latent, rope, "rtn").view(4, BLOCK, 352)
    out = torch.full((rows + 3, 576), 7.0, dtype=dtype)
    ops.gather_and_maybe_dequant_cache(
        src_cache=cache,
        dst=out,
        block_table=torch.tensor(table, dtype=torch.int32),
        cu_seq_lens=torch.tensor(starts, dtype=torch.int32),
        token_to_seq=torch.zeros(rows, dtype=torch.int32),
        num_tokens=rows,
        kv_cache_dtype=cache_dtype,
        scale=torch.ones(1),
        seq_starts=None if first is None else torch.tensor(first, dtype=torch.int32),
    )
    return cache.view(-1, 352), out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_token_of_each_request_is_its_own_row(dtype):
    cache, out = gathered([[2, 0], [3, 1]], [0, 20, 25], None, 25, dtype)
    slots = [*range(32, 48), *range(4), *range(48, 53)]
    assert out[:25].double().tolist() == [decoded(cache[slot]) for slot in slots]
    assert (out[25:] == 7.0).all(), "rows beyond the batch are not touched"


def test_a_request_may_begin_behind_its_first_token():
    cache, out = gathered([[2, 0]], [0, 4], [14], 4)
    assert out[:4].double().tolist() == [decoded(cache[slot]) for slot in (46, 47, 0, 1)]


def test_a_workspace_of_another_width_is_refused():
    with pytest.raises(LaunchRefused, match="out"):
        ops.gather_and_maybe_dequant_cache(
            torch.zeros(1, BLOCK, 352, dtype=torch.uint8),
            torch.zeros(4, 512),
            torch.zeros(1, 1, dtype=torch.int32),
            torch.tensor([0, 4], dtype=torch.int32),
            torch.zeros(4, dtype=torch.int32),
            4,
            "nvfp4_ds_mla",
            torch.ones(1),
        )
