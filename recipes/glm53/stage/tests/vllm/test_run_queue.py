import random

import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.run_queue import RunQueue, hand_out_runs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCK = 4


def manager(blocks):
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheManager(
        KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["kv"], spec)]),
        max_model_len=1 << 16,
        max_in_flight_tokens=1 << 16,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_caching=False,
    )


def runs(ids):
    return sum(1 for i, one in enumerate(ids) if i == 0 or one != ids[i - 1] + 1)


def prompt(made, name):
    """The ids that a prompt gets which is prefilled in eight chunks."""
    groups = made.coordinator.single_type_managers[0]
    ids = []
    for step in range(1, 9):
        blocks = groups.allocate_new_blocks(name, step * 4 * BLOCK, step * 4 * BLOCK)
        ids += [block.block_id for block in blocks]
    return ids


def scattered(in_runs):
    """A pool whose blocks came back in a random order."""
    made, rng = manager(512), random.Random(0)
    if in_runs:
        hand_out_runs(made.block_pool, 0)
    taken = made.block_pool.get_new_blocks(500)
    rng.shuffle(taken)
    made.block_pool.free_blocks(taken)
    return made, rng


def test_a_prompt_in_chunks_gets_blocks_that_follow_each_other():
    made, _ = scattered(in_runs=True)
    assert isinstance(made.block_pool.free_block_queue, RunQueue)
    given = [prompt(made, name) for name in "abc"]
    assert [len(ids) for ids in given] == [32, 32, 32]
    assert len({one for ids in given for one in ids}) == 96
    assert [runs(ids) for ids in given] == [1, 1, 1]
    made, _ = scattered(in_runs=False)
    assert all(runs(prompt(made, name)) > 20 for name in "abc")


def test_no_block_is_handed_out_twice_or_lost():
    made, rng = scattered(in_runs=True)
    pool = made.block_pool
    held, free = [], pool.get_num_free_blocks()
    for _ in range(200):
        if held and rng.random() < 0.5:
            pool.free_blocks(held.pop(rng.randrange(len(held))))
        elif (count := rng.randrange(1, 30)) <= pool.get_num_free_blocks():
            held.append(pool.get_new_blocks(count))
        ids = [block.block_id for blocks in held for block in blocks]
        assert len(ids) == len(set(ids))
        assert pool.get_num_free_blocks() == free - len(ids)
