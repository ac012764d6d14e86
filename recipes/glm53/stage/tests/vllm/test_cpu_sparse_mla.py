from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.mla.cpu_sparse import CpuSparseMLABackend
from vllm.v1.attention.ops.cpu_sparse_mla.attention import attend, store_rows
from vllm.v1.attention.ops.cpu_sparse_mla.errors import Unsupported
from vllm.v1.attention.ops.cpu_sparse_mla.indexer import page_views, select, store_keys
from vllm.v1.attention.ops.cpu_sparse_mla.paged import PagedBatch
from vllm.v1.attention.ops.cpu_sparse_mla.rows import row_format, row_formats

BLOCK, TOPK = 64, 16


@pytest.fixture
def batch():
    """A prefill of 20 tokens behind 50, and a decode behind 129; their blocks lie anywhere."""
    table = torch.tensor([[5, 2, 0], [1, 6, 3]], dtype=torch.int32)
    return PagedBatch.of([0, 20, 21], [70, 130], table), [(0, 50 + i) for i in range(20)] + [(1, 129)]


def slot(table, request, position):
    return int(table.requests[request].blocks[position // BLOCK]), position % BLOCK


def config(architecture, monkeypatch):
    model = SimpleNamespace(architectures=[architecture], hf_text_config=SimpleNamespace())
    monkeypatch.setattr("vllm.config.get_current_vllm_config", lambda: SimpleNamespace(model_config=model))


def test_the_cpu_has_a_backend_for_models_with_an_indexer_and_for_no_others(monkeypatch):
    wanted = SimpleNamespace(use_sparse=True, use_mla=True, kv_cache_dtype="auto")
    config("GlmMoeDsaForCausalLM", monkeypatch)
    path = CpuPlatform.get_attn_backend_cls(None, wanted)
    assert path == f"{CpuSparseMLABackend.__module__}.{CpuSparseMLABackend.__qualname__}"
    config("DeepseekV4ForCausalLM", monkeypatch)
    with pytest.raises(NotImplementedError):
        CpuPlatform.get_attn_backend_cls(None, wanted)


@pytest.mark.parametrize("dtype", ["auto", "fp8", "nvfp4_ds_mla"])
def test_a_token_attends_to_its_selected_rows_and_to_nothing_else(batch, dtype):
    requests, tokens = batch
    rows = row_format(dtype)
    generator = torch.Generator().manual_seed(0)
    width = rows.row_bytes or 576
    cache = torch.zeros(8, BLOCK, width, dtype=torch.uint8 if rows.row_bytes else torch.float32)
    values = torch.randn(8 * BLOCK, 576, generator=generator)
    store_rows(cache, torch.arange(8 * BLOCK), values[:, :512], values[:, 512:], rows)
    query = torch.randn(len(tokens), 3, 576, generator=generator)
    selected = torch.full((len(tokens), TOPK), -1, dtype=torch.int32)
    for i, (_, position) in enumerate(tokens):
        picked = torch.randperm(position + 1, generator=generator)[: 1 + i % TOPK]
        selected[i, : len(picked)] = picked
    out = torch.zeros(len(tokens), 3, 512)
    attend(cache, requests, query, selected, 0.1, rows, out)
    for i, (request, _) in enumerate(tokens):
        places = [slot(requests, request, p) for p in selected[i].tolist() if p >= 0]
        latent, rope = rows.decode(torch.stack([cache[place] for place in places]))
        key = torch.cat((latent, rope), -1).double()
        weight = (query[i].double() @ key.T * 0.1).softmax(-1)
        torch.testing.assert_close(out[i].double(), weight @ key[:, :512], rtol=1e-4, atol=1e-4)


def test_the_indexer_selects_the_best_keys_of_its_own_request(batch):
    requests, tokens = batch
    generator = torch.Generator().manual_seed(1)
    cache = torch.zeros(8, BLOCK, 132, dtype=torch.uint8)
    store_keys(cache, torch.arange(8 * BLOCK), torch.randn(8 * BLOCK, 128, generator=generator))
    query = torch.randn(len(tokens), 4, 128, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.rand(len(tokens), 4, generator=generator)
    out = torch.zeros(len(tokens), TOPK, dtype=torch.int32)
    select(cache, requests, query, weights, TOPK, out)
    codes, scales = page_views(cache)
    key = codes.view(torch.float8_e4m3fn).double() * scales.view(torch.float32).double()
    for i, (request, position) in enumerate(tokens):
        seen = torch.stack([key[slot(requests, request, p)] for p in range(position + 1)])
        score = weights[i].double() @ (query[i].double() @ seen.T).relu()
        assert sorted(out[i].tolist()) == sorted(score.topk(TOPK).indices.tolist())


def test_fp8_groups_have_scales_that_are_powers_of_two():
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(2))
    values, scales = per_token_group_quant_fp8(x, 128, use_ue8m0=True)
    assert (scales.log2() % 1 == 0).all()
    error = values.float().view(5, 2, 128) * scales[..., None] - x.view(5, 2, 128)
    assert (error.abs() <= scales[..., None] * 16).all(), "half a unit in the last place of 448"
    assert scales.shape == (5, 2)


def test_other_cache_dtypes_are_refused_with_those_that_are_served():
    assert set(row_formats()) == {"auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "nvfp4_ds_mla"}
    with pytest.raises(Unsupported, match="fp8_ds_mla.*auto.*nvfp4_ds_mla"):
        row_format("fp8_ds_mla")
