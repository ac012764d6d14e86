from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.draft_pages import head_sharded, places
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

BLOCK = 16


def specs():
    mla = {"block_size": BLOCK, "num_kv_heads": 1, "dtype": torch.uint8}
    return {
        "layers.0.attn": MLAAttentionSpec(head_size=576, **mla),
        "layers.0.indexer": MLAAttentionSpec(head_size=132, **mla),
        "layers.1.attn": FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.bfloat16),
    }


def test_only_the_drafts_pages_are_split_over_ranks_and_each_is_told_where_it_lies():
    sizes = {"layers.0.attn": BLOCK * 576, "layers.0.indexer": BLOCK * 132, "layers.1.attn": 2 * BLOCK * 2 * 64 * 2}
    assert {name: spec.page_size_bytes for name, spec in specs().items()} == sizes
    row = torch.zeros(sum(sizes.values()), dtype=torch.uint8)
    caches = dict(zip(sizes, row.split(list(sizes.values())), strict=True))
    assert head_sharded(specs()) == ["layers.1.attn"]
    found = places(caches, specs(), ["layers.1.attn"], row.data_ptr())
    assert found == {"layers.1.attn": (BLOCK * (576 + 132), 2 * BLOCK * 2 * 64 * 2)}


@pytest.mark.parametrize("pages", [{}, {"layers.1.attn": (0, 4096)}])
def test_rows_with_a_drafts_pages_need_as_many_ranks_at_the_peer(pages):
    worker = object.__new__(NixlBaseConnectorWorker)
    worker.__dict__.update(_draft_pages=pages, transfer_tp_size=2, _packed_member_layouts={})
    worker.__dict__.update(_transfer_layer_region_indices=(), _remote_agents={"peer": {(0, 0): "known"}})
    peer = SimpleNamespace(engine_id="peer", packed_member_layouts={})
    if pages:
        with pytest.raises(RuntimeError, match="tensor-parallel size 4 there and 2 here"):
            worker.add_remote_agent(peer, 0, 4)
    else:
        assert worker.add_remote_agent(peer, 0, 4) == "known"
