import math

import pytest
import torch
from vllm.utils.math_utils import round_up
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import (
    FlashInferMLASparseTRTLLMBackend,
)
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.utils import customize_attention_spec

ROW = 576  # bytes of a token in fp8
INDEXER = 64 * 132  # bytes of an indexer's page beside it


def spec_of(block_size):
    spec = MLAAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=ROW, dtype=torch.uint8)
    return customize_attention_spec(FlashInferMLASparseTRTLLMBackend, spec)


@pytest.mark.parametrize(("block_size", "page"), [(32, 32), (64, 64), (96, 32), (128, 64), (256, 64)])
def test_blocks_are_as_far_apart_as_the_largest_page_allows(block_size, page):
    spec = spec_of(block_size)
    assert spec.get_block_stride_alignment() == page * ROW
    # A block that is not packed is long enough as it is.
    assert spec.page_size_bytes % (page * ROW) == 0


@pytest.mark.parametrize(("layers", "indexers"), [(79, 22), (78, 21), (61, 61), (1, 1)])
def test_packed_blocks_have_the_page_of_those_that_are_not(layers, indexers):
    spec = spec_of(64)
    packed = layers * spec.page_size_bytes + indexers * INDEXER
    rows = round_up(packed, spec.get_block_stride_alignment()) // ROW
    # What the backend's kernel is given.
    assert math.gcd(rows, 64, 64) == 64
    assert 0 <= rows * ROW - packed < 64 * ROW
