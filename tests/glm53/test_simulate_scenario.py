"""What the mocker is configured with, held against data sheets and byte counts; and the profile of its times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recipe_files import raw

from glm53.deployment import load, parse
from glm53.plan.group import group_kv, prefix_ratio, tensor_parallel
from glm53.simulate.compare import COMPARISONS, rows
from glm53.simulate.scenario import baseline, job
from glm53.simulate.timing import Speeds, write_profile
from vllm_blhnc.plan import PlanError

GB200 = Path(__file__).parents[2] / "recipes" / "glm53-gb200-nvl72.yaml"
SPEEDS = Speeds(80_000.0, 10.0, ("", ""))

#: 0.87 of 186 GB, less 38 GB outside the experts, an eighth of 427 GB of experts, 6 + 8 GiB of buffers; a block of 79
#: MLA caches with 352 bytes a token and 22 indexer caches with 132.
DEP_POOL = 161_820_000_000 - 38_000_000_000 - 53_375_000_000 - 14 * 2**30
TEP_POOL = 161_820_000_000 - 4_750_000_000 - 53_375_000_000 - 6 * 2**30
BLOCK = 64 * (79 * 352 + 22 * 132)


def test_a_rank_holds_what_its_gpu_has_left() -> None:
    deployment = load(GB200)
    kv = group_kv(deployment, deployment.roles.prefill)

    assert (kv.pool, kv.ranks, kv.gpus) == (DEP_POOL, 8, 8)
    assert kv.block_bytes == BLOCK == 1_965_568
    assert (kv.blocks, kv.tokens) == (DEP_POOL // BLOCK, 8 * 64 * (DEP_POOL // BLOCK))


def test_the_same_gpus_with_tensor_parallelism_hold_one_cache() -> None:
    deployment = load(GB200)
    role = tensor_parallel(deployment.roles.prefill)
    kv = group_kv(deployment, role)

    assert (role.tensor_parallel, role.data_parallel, role.gpus, role.expert_parallel) == (8, 1, 8, True)
    assert (kv.pool, kv.ranks, kv.blocks) == (TEP_POOL, 1, TEP_POOL // BLOCK)
    dep = 8 * (DEP_POOL // BLOCK) / (TEP_POOL // BLOCK)
    assert prefix_ratio(deployment, deployment.roles.prefill) == dep == pytest.approx(4.56, abs=0.005)
    assert prefix_ratio(deployment, deployment.roles.prefill, 19 * 10**9) == pytest.approx(5.98, abs=0.005)


def test_the_job_is_the_recipe(tmp_path: Path) -> None:
    deployment = load(GB200)
    described = job(deployment, baseline(deployment), SPEEDS, tmp_path)

    prefill, decode = described["prefill"], described["decode"]
    assert (prefill["dp_size"], decode["dp_size"]) == (8, 1)
    assert (described["prefill_groups"], described["decode_groups"], described["router"]) == (1, 4, "kv_router")
    engine = prefill["engine"]
    assert (engine["max_num_batched_tokens"], engine["max_num_seqs"]) == (4096, 32)
    assert (engine["num_gpu_blocks"], engine["block_size"]) == (DEP_POOL // BLOCK, 64)
    assert engine["max_model_len"] == decode["engine"]["max_model_len"] == 400_000
    assert (decode["engine"]["max_num_batched_tokens"], decode["engine"]["max_num_seqs"]) == (1024, 64)
    decode_pool = 161_820_000_000 - (38_000_000_000 + 427_000_000_000) // 4 - 6 * 2**30
    assert decode["engine"]["num_gpu_blocks"] == decode_pool // BLOCK
    # 400 GiB on each of two nodes, one part a rank.
    assert engine["native_host_offload"]["num_host_blocks"] == 2 * 400 * 2**30 // BLOCK // 8
    assert engine["kv_cache_bytes_per_token"] == 79 * 352 + 22 * 132 - 0  # padding is none here
    assert "native_host_offload" not in decode["engine"]


def test_a_pool_that_ranks_share_is_whole_and_bound_to_the_recipes_bytes(tmp_path: Path) -> None:
    deployment = load(GB200)
    described = job(deployment, baseline(deployment).with_(shared=True), SPEEDS, tmp_path)
    pool = described["prefill"]["engine"]["native_host_offload"]

    assert (pool["scope"], pool["num_host_blocks"]) == ("cluster_shared", 2 * 400 * 2**30 // BLOCK)
    assert pool["kv_layout_id"] == deployment.fingerprint


def test_a_tensor_parallel_group_computes_as_one_rank(tmp_path: Path) -> None:
    deployment = load(GB200)
    base = baseline(deployment)
    speeds = []
    for scenario in (base, base.as_tensor_parallel):
        described = job(deployment, scenario, SPEEDS, tmp_path)
        profile = np.load(described["prefill"]["engine"]["timing_model"]["config"]["path"])
        speeds.append(profile["prefill_isl"][1] / profile["prefill_ttft_ms"][1] * 1000)
        assert np.load(described["decode"]["engine"]["timing_model"]["config"]["path"])["decode_itl"].tolist() == [
            [10.0, 10.0],
            [10.0, 10.0],
        ]

    assert speeds == [10_000.0, 80_000.0]


def test_the_profile_is_the_archive_that_numpy_reads(tmp_path: Path) -> None:
    path = tmp_path / "profile.npz"
    write_profile(path, 25_000.0, 9.5)
    profile = np.load(path)

    assert set(profile.files) == {
        *("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")
    }
    assert {profile[name].dtype for name in profile.files} == {np.dtype("float64")}
    assert np.interp(4096, profile["prefill_isl"], profile["prefill_ttft_ms"]) == pytest.approx(4096 / 25)
    assert profile["decode_itl"].shape == (
        len(profile["decode_active_kv_tokens"]),
        len(profile["decode_context_length"]),
    )


def test_each_comparison_changes_one_thing() -> None:
    base = baseline(load(GB200))
    sides = {name: [row.scenario for row in rows(base, [name])] for name in COMPARISONS}

    assert [(one.prefill.tensor_parallel, one.tier) for one in sides["shape"]] == [(8, 0), (1, 0)]
    assert [one.chunk for one in sides["chunk"]] == [8192, 4096]
    assert [one.router for one in sides["router"]] == ["round_robin", "kv_router"]
    assert [one.tier for one in sides["tier"]] == [0, 800 * 2**30]
    assert [(one.router, one.shared) for one in sides["pool"]] == [("round_robin", False), ("round_robin", True)]
    assert [one.decode_groups for one in sides["ratio"]] == [2, 3, 4, 6, 8]
    assert [row.load for row in rows(base, ["ratio"])] == [0.5, 0.75, 1.0, 1.5, 2.0]
    for name, changed in (("chunk", "chunk"), ("router", "router"), ("tier", "tier"), ("ratio", "decode_groups")):
        kept = {changed: getattr(base, changed)}
        assert all(one.with_(**kept) == base for one in sides[name])
    assert len({one.key for some in sides.values() for one in some}) == 10


def test_a_recipe_without_a_tier_has_nothing_to_compare_it_with() -> None:
    assert rows(baseline(parse(raw(tier=None))), ["tier", "pool"]) == []


def test_what_cannot_be_simulated_is_refused() -> None:
    cpu = load(GB200.with_name("glm53-cpu.yaml"))
    with pytest.raises(PlanError, match=r"hardware=cpu .* recipes/glm53-gb200-nvl72.yaml"):
        group_kv(cpu, cpu.roles.prefill)
    with pytest.raises(PlanError, match=r"workers.prefill=0"):
        baseline(
            parse(
                raw(workers={"prefill": 0, "decode": 0, "aggregated": 1}, roles={"aggregated": {"tensor_parallel": 8}})
            )
        )
    deployment = load(GB200)
    with pytest.raises(PlanError, match="nothing is left for KV"):
        group_kv(deployment, deployment.roles.prefill, 160 * 10**9)
