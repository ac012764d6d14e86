import multiprocessing

import pytest
import torch
from vllm._custom_ops import cpu_prepack_moe_weight
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.platforms import current_platform

RANKS, COLUMNS = 2, 3
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
SIZES = ([3, 1], [0, 2], [2, 2], [0, 0])


def rows(rank, count, dtype):
    """A number for each place, so small that bfloat16 holds the sum of two."""
    places = [[64 * rank + 8 * row + column for column in range(COLUMNS)] for row in range(count)]
    return torch.tensor(places, dtype=dtype).view(count, COLUMNS)


def compare(rank, store):
    torch.set_num_threads(1)
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    world = dist.group.WORLD
    group = CpuCommunicator(world, torch.device("cpu"), world, "dp:0")
    for sizes in SIZES:
        gathered = group.all_gatherv([rows(rank, sizes[rank], dtype) for dtype in DTYPES], 0, sizes)
        for dtype, got in zip(DTYPES, gathered, strict=True):
            expected = torch.cat([rows(one, size, dtype) for one, size in enumerate(sizes)])
            assert got.dtype == dtype
            assert torch.equal(got, expected)
            whole = rows(0, sum(sizes), dtype) + rows(1, sum(sizes), dtype)
            for dim in (0, -1):
                given = rows(rank, sum(sizes), dtype).movedim(0, dim)
                part = group.reduce_scatterv(given, dim, sizes)
                assert part.dtype == dtype
                assert torch.equal(part, whole.split(sizes)[rank].movedim(0, dim))
    assert torch.equal(group.all_gatherv(rows(rank, 2, DTYPES[0])), torch.cat([rows(r, 2, DTYPES[0]) for r in (0, 1)]))
    with pytest.raises(NotImplementedError):
        group.all_gatherv(rows(rank, 2, DTYPES[0]), 1)
    for sizes in ([3], [1, 1]):
        with pytest.raises(ValueError, match="sizes="):
            group.all_gatherv(rows(rank, 3, DTYPES[0]), 0, sizes)
        with pytest.raises(ValueError, match="sizes="):
            group.reduce_scatterv(rows(rank, 3, DTYPES[0]), 0, sizes)
    dist.destroy_process_group()


def test_rows_are_gathered_and_sums_scattered(tmp_path):
    started = multiprocessing.get_context("fork")
    ranks = [started.Process(target=compare, args=(rank, tmp_path / "store")) for rank in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
    assert [one.exitcode for one in ranks] == [0] * RANKS


EXPERTS, HIDDEN, INNER, TOKENS, TOPK = 4, 64, 32, 9, 2


def computed(w13, w2, x, weights, ids, expert_map):
    experts = CPUUnquantizedExperts.__new__(CPUUnquantizedExperts)
    experts.quant_config, experts._use_zentorch = FusedMoEQuantConfig.make(), False
    output, nothing = torch.full_like(x, torch.nan), torch.empty(0)
    packed = [cpu_prepack_moe_weight(one.contiguous(), "vec") for one in (w13, w2)]
    how = (MoEActivation.SILU, EXPERTS, expert_map)
    experts.apply(output, x, *packed, weights, ids, *how, None, None, nothing, nothing, None, False)
    return output


def test_each_rank_sums_over_its_experts():
    current_platform.import_kernels()
    generator = torch.Generator().manual_seed(0)
    w13 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=generator) / 8
    w2 = torch.randn(EXPERTS, HIDDEN, INNER, generator=generator) / 8
    x = torch.randn(TOKENS, HIDDEN, generator=generator)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(TOKENS)]).int()
    weights = torch.rand(TOKENS, TOPK, generator=generator)
    for here in ([0, 1, 2, 3], [0, 1], [2, 3], [3, 0]):
        expected = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
        for token in range(TOKENS):
            for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
                if expert in here:
                    gate, up = (w13[expert].double() @ x[token].double()).chunk(2)
                    expected[token] += weight * (w2[expert].double() @ (torch.nn.functional.silu(gate) * up))
        numbers = torch.tensor([here.index(one) if one in here else -1 for one in range(EXPERTS)], dtype=torch.int32)
        got = computed(w13[here], w2[here], x, weights, ids, numbers)
        assert (got - expected).abs().max() < 1e-4
