"""On a GPU, or anywhere with TRITON_INTERPRET=1."""

import runpy
from pathlib import Path

import pytest
import torch
from vllm.v1.attention.ops.nvfp4_mla.codec import decode_rows, encode_rows
from vllm.v1.attention.ops.nvfp4_mla.errors import LaunchRefused
from vllm.v1.attention.ops.nvfp4_mla.kernels.decode import decode
from vllm.v1.attention.ops.nvfp4_mla.kernels.encode import encode
from vllm.v1.attention.ops.nvfp4_mla.prefill import PrefillTables, attend
from vllm.v1.attention.ops.nvfp4_mla.prefill_plan import Costs, Request, plan_prefill
from vllm.v1.attention.ops.nvfp4_mla.workspace import Layout, StagedRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK, SCALE = 64, 256**-0.5


def cache_of(blocks, seed=0):
    """A cache and the values of its rows; 4 KiB of NaN lie between the blocks."""
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(blocks * BLOCK, 512, generator=generator)
    rows = encode_rows(latent, torch.randn(blocks * BLOCK, 64, generator=generator), "rtn")
    memory = torch.full((blocks, BLOCK * 352 + 4096), 0xFF, dtype=torch.uint8, device=DEVICE)
    cache = memory[:, : BLOCK * 352].unflatten(1, (BLOCK, 352))
    cache.copy_(rows.view(blocks, BLOCK, 352))
    return cache, torch.cat(decode_rows(rows), -1).double()


def reference(query, values, indices):
    empty = (indices < 0) | (indices >= len(values))
    keys = values[indices.long().masked_fill(empty, 0)]
    scores = torch.einsum("thd,tkd->thk", query.double(), keys) * SCALE
    scores = scores.masked_fill(empty[:, None], -float("inf"))
    return torch.einsum("thk,tkd->thd", scores.softmax(-1).nan_to_num(0.0), keys[..., :512]), scores.logsumexp(-1)


def close(out, right, most=5e-3):
    error = (out.cpu().double() - right).abs().amax(-1) / right.abs().amax(-1).clamp(min=1e-30)
    assert error.max().item() <= most


@pytest.mark.parametrize(
    ("heads", "topk", "splits", "dtype"),
    [(16, 64, 1, torch.bfloat16), (8, 64, 2, torch.float8_e4m3fn), (24, 32, 1, torch.bfloat16)],
)
def test_decode_is_attention_in_float64(heads, topk, splits, dtype):
    cache, values = cache_of(3)
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(3, heads, 576, generator=generator).to(dtype)
    indices = torch.randint(0, len(values), (3, topk), dtype=torch.int32, generator=generator)
    indices[torch.rand(3, topk, generator=generator) < 0.25] = -1
    indices[1] = -1
    indices[2, :2] = torch.tensor([len(values), 2**30])
    out, lse = decode(query.to(DEVICE), cache, indices.to(DEVICE), SCALE, splits=splits)
    right, sums = reference(query, values, indices)
    close(out, right)
    assert not out[1].any()
    torch.testing.assert_close(lse.cpu().double(), sums, atol=1e-5, rtol=1e-5)


def test_shards_merge_by_their_log_sum_exps():
    cache, values = cache_of(2)
    query = torch.randn(1, 16, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    indices = torch.randperm(128, generator=torch.Generator().manual_seed(2), dtype=torch.int32)[None, :64]
    parts = [
        decode(
            query.to(DEVICE),
            cache,
            torch.where(indices % 2 == rank, indices, -1).to(DEVICE),
            SCALE,
            dtype=torch.float32,
        )
        for rank in range(2)
    ]
    outs, sums = (torch.stack([part[i].cpu().double() for part in parts]) for i in range(2))
    right, total = reference(query, values, indices)
    torch.testing.assert_close(sums.logsumexp(0), total, atol=1e-5, rtol=1e-5)
    close((sums.softmax(0)[..., None] * outs).sum(0), right, 5e-4)


class StagedInFloat64:
    """Stands for FlashInfer's kernel, which reads staged rows."""

    dtype, scale = torch.bfloat16, 1.0

    def __call__(self, query, rows, indices, counts, lse):
        out, sums = reference(query.cpu(), rows.cpu().double(), indices.cpu())
        return out.bfloat16().to(DEVICE), sums.float().to(DEVICE) if lse else None


@pytest.mark.parametrize(("capacity", "parts"), [(128, 3), (192, 1)])
def test_prefill_is_the_same_staged_in_parts_and_direct(capacity, parts):
    cache, values = cache_of(3)
    tokens, topk, rows = 3, 32, 150
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(tokens, 8, 576, generator=generator).bfloat16()
    positions = torch.stack(
        [torch.randperm(rows, generator=generator, dtype=torch.int32)[:topk] for _ in range(tokens)]
    )
    slots = table[0][positions.long() // BLOCK] * BLOCK + positions % BLOCK
    layout = Layout(topk, 8, StagedRows(row_bytes=1152, lse=True), capacity, 2)
    plan = plan_prefill([Request(tokens, rows)], 8, layout, Costs(row=0.0, staged=0.0, part=0.0))
    assert {stage.parts for stage in plan.stages} == {parts}
    out = attend(
        PrefillTables.of(plan, 1, DEVICE),
        layout,
        query.to(DEVICE),
        cache,
        positions.to(DEVICE),
        torch.zeros(tokens, dtype=torch.int32, device=DEVICE),
        table.to(DEVICE),
        torch.zeros(layout.buffer_bytes, dtype=torch.uint8, device=DEVICE),
        direct=lambda some: pytest.fail("nothing is direct"),
        staged=StagedInFloat64(),
    )
    right = reference(query, values, slots)[0]
    close(out, right, 1e-2)
    direct, _ = decode(query.to(DEVICE), cache, slots.to(DEVICE), SCALE)
    close(direct, right)


def test_written_rows_are_the_codecs():
    generator = torch.Generator().manual_seed(4)
    latent, rope = torch.randn(6, 512, generator=generator), torch.randn(6, 64, generator=generator)
    cache = torch.zeros(2, BLOCK, 352, dtype=torch.uint8, device=DEVICE)
    slots = torch.tensor([3, -1, 70, 71, 5, 2**40])
    encode(latent.to(DEVICE), rope.to(DEVICE), cache, slots.to(DEVICE), "rtn")
    expected = torch.zeros(2 * BLOCK, 352, dtype=torch.uint8)
    expected[[3, 70, 71, 5]] = encode_rows(latent, rope, "rtn")[[0, 2, 3, 4]]
    assert torch.equal(cache.view(-1, 352).cpu(), expected)


@pytest.mark.parametrize(("heads", "topk"), [(129, 64), (16, 48)])
def test_launches_that_do_not_fit_are_refused(heads, topk):
    cache, _ = cache_of(1)
    query = torch.zeros(1, heads, 576, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(LaunchRefused, match=f"heads={heads}, topk={topk}"):
        decode(query, cache, torch.zeros(1, topk, dtype=torch.int32, device=DEVICE), SCALE)


def test_the_benchmark_prints_a_line_for_each_size(capsys):
    script = Path(__file__).parents[3] / "benchmarks" / "kernels" / "benchmark_nvfp4_mla_decode.py"
    sizes = ["--tokens", "1", "2", "--heads", "8", "--topk", "32", "--rows", "1024", "--repeat", "1"]
    runpy.run_path(str(script))["main"]([*sizes, "--device", DEVICE])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["1", "8"], ["2", "8"]]
