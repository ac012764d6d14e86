"""The DRAM tier in the whole stack: Dynamo, NIXL and Mooncake at once, with rows of 352 bytes and two ranks a role."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from stacks import deployment_for, needs_stack

from glm53.demo.tier import drive, tokens_by_rank, tokens_by_source

pytestmark = [
    needs_stack,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("mooncake") is None, reason="needs Mooncake: run `make test`"),
]

TIER = {"memory": "256MiB", "buffer": "4MiB", "protocol": "tcp", "chunk_tokens": 256}
ENGINE = {"dtype": "float32", "max_model_len": 2048, "kv_cache": "32MiB", "kv_cache_dtype": "nvfp4_ds_mla"}
#: Prefill as in DEP8 and decode as in TP4, with two ranks each.
ROLES = {"prefill": {"data_parallel": 2, "expert_parallel": True}, "decode": {"tensor_parallel": 2}}
ROW = 4 * 352 + 3 * 132  # bytes a token: an MLA row in each of four layers, an indexer row in three of them


def test_a_prompt_that_was_evicted_comes_back_from_the_tier_with_equal_tokens(model: Path, tmp_path: Path) -> None:
    report = drive(deployment_for(model, tier=TIER, engine=ENGINE, roles=ROLES), tmp_path, print)

    first, again, evicted = report["asked"]
    tokens = 1024
    assert (first["computed"], first["gpu"], first["tier"]) == (tokens, 0, 0)
    assert (again["gpu"], again["tier"]) == (tokens - 64, 0), "the last block is always computed"
    assert (evicted["gpu"], evicted["tier"] + evicted["computed"]) == (0, tokens)
    assert evicted["tier"] % 256 == 0
    assert evicted["tier"] > 0
    assert evicted["loaded_bytes"] >= evicted["tier"] * ROW
    assert report["outputs_equal"]
    assert report["from_the_tier"]
    assert len(first["text"]) > 0
    assert sorted(report["ranks"]) == ["0", "1"]
    assert all(rank["computed"] >= tokens for rank in report["ranks"].values()), "the router sends prompts to both"


def test_tokens_are_read_from_vllms_own_counters() -> None:
    name = "vllm:prompt_tokens_by_source_total"
    text = (
        f'# TYPE {name} counter\n{name}{{engine="0",source="local_compute"}} 3422.0\n'
        f'{name}{{engine="0",source="local_cache_hit"}} 3008.0\n{name}{{source="external_kv_transfer"}} 2816.0\n'
        f'{name}{{engine="1",source="local_compute"}} 10\n{name}{{source="something_else"}} 7\n'
    )
    assert tokens_by_source(text) == {"computed": 3432, "gpu": 3008, "tier": 2816}
    assert tokens_by_rank(text)["1"] == {"computed": 10, "gpu": 0, "tier": 0}
