"""Dense prefill with a cached context of NVFP4 rows, through vLLM's own attention code on the CPU.

The CUDA code that gathers contexts is not in a CPU wheel. What is real here: the implementation class, its plan of
context chunks, its dense attention (the CPU's backend) and its merge of partial results.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
pytest.importorskip("vllm", reason="needs vLLM: make test")

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.attention import mla_attention
from vllm.utils import torch_utils
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import FlashInferMLASparseImpl
from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseImpl
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend
from vllm.v1.attention.ops import merge_attn_states

from flashinfer_nvfp4 import backend, context_gather
from flashinfer_nvfp4.codec import decode_rows, encode_rows
from flashinfer_nvfp4.context_gather import around_gather, gather_context
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.patches import CONTEXT, REGISTER
from stockpatch.register import Register

HEADS, NOPE, ROPE, VALUE, LATENT = 4, 128, 64, 96, 512
SCALE = (NOPE + ROPE) ** -0.5
BLOCK = 64
CONTEXTS, QUERIES = [100, 0, 333, 64], [3, 5, 1, 40]


def _cuda_refuses(
    src_cache: Any,
    dst: Any,
    block_table: Any,
    cu_seq_lens: Any,
    token_to_seq: Any,
    num_tokens: int,
    kv_cache_dtype: str,
    scale: Any,
    seq_starts: Any = None,
) -> None:
    """Fake: what the CUDA code's dispatch over names of dtypes does at one that it does not know."""
    if kv_cache_dtype not in ("auto", "fp8", "fp8_e4m3", "fp8_e5m2"):
        raise RuntimeError(f"Unsupported data type of kv cache: {kv_cache_dtype}")
    raise AssertionError(f"gathered {kv_cache_dtype}")


class _Platform:
    """The installed platform, but for the question that sends CPUs another way."""

    def __init__(self, platform: Any, cpu: bool) -> None:
        self.platform = platform
        self.cpu = cpu

    def is_cpu(self) -> bool:
        return self.cpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self.platform, name)


@pytest.fixture(autouse=True)
def _nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a platform vLLM pins memory, which torch refuses without a GPU."""
    for module in (torch_utils, mla_attention):
        if "PIN_MEMORY" in vars(module):
            monkeypatch.setattr(module, "PIN_MEMORY", False)
    monkeypatch.setattr(torch_utils, "is_pin_memory_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention code takes a GPU's way, and its merge the CPU's."""
    for module, cpu in ((mla_attention, False), (merge_attn_states, True)):
        monkeypatch.setattr(module, "current_platform", _Platform(module.current_platform, cpu))
    monkeypatch.setattr(ops, "gather_and_maybe_dequant_cache", _cuda_refuses)


@pytest.fixture
def served(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "gather_and_maybe_dequant_cache", around_gather(_cuda_refuses))


class _Projection:
    """``kv_b_proj``, float32 [latent, heads * (nope + value)]."""

    params_dtype = torch.float32

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.weight = torch.randn(HEADS * (NOPE + VALUE), LATENT) / math.sqrt(LATENT)

    def __call__(self, latent: Any) -> tuple[Any]:
        return (latent @ self.weight.T,)


def _impl(kind: Any) -> Any:
    impl = kind.__new__(kind)
    impl.__dict__.update(
        num_heads=HEADS,
        scale=SCALE,
        kv_cache_dtype="nvfp4_ds_mla",
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        qk_head_dim=NOPE + ROPE,
        v_head_dim=VALUE,
        kv_b_proj=_Projection(),
        _use_flashinfer_concat_mla_k=False,
        dcp_world_size=1,
    )
    return impl


def _batch(workspace_rows: int) -> tuple[Any, Any, Any]:
    """A cache with every request's context, its block rows apart in NaN; block table; prefill metadata."""
    torch.manual_seed(0)
    blocks = [-(-context // BLOCK) for context in CONTEXTS]
    memory = torch.full((sum(blocks) + 2, BLOCK * 352 + 4096), 0xFF, dtype=torch.uint8)
    cache = memory[:, : BLOCK * 352].unflatten(1, (BLOCK, 352))
    order = torch.randperm(len(memory))
    table = torch.zeros(len(CONTEXTS), max(blocks), dtype=torch.int32)
    for request, count in enumerate(blocks):
        table[request, :count], order = order[:count].int(), order[count:]
        for block in table[request, :count].tolist():
            cache[block] = encode_rows(torch.randn(BLOCK, 512), torch.randn(BLOCK, 64), "search")
    starts = torch.tensor([0, *QUERIES], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    chunked = mla_attention.build_mla_chunked_context_metadata(
        context_lens_cpu=torch.tensor(CONTEXTS, dtype=torch.int32),
        prefill_query_start_loc_cpu=starts,
        chunked_prefill_workspace=torch.full((workspace_rows, 576), float("nan")),
        chunked_prefill_workspace_size=workspace_rows,
        block_size=BLOCK,
        align_chunk_to_block=True,
        device=torch.device("cpu"),
        dcp_world_size=1,
        dcp_local_block_size=1,
        dcp_virtual_block_size=1,
    )
    backend = CPUSDPAMLAPrefillBackend(HEADS, SCALE, LATENT, NOPE, ROPE, VALUE, None)
    prefill = mla_attention.MLACommonPrefillMetadata(
        block_table=table,
        query_start_loc=starts,
        max_query_len=max(QUERIES),
        chunked_context=chunked,
        q_data_type=torch.float32,
        output_dtype=torch.float32,
        prefill_backend=backend,
    )
    backend.prepare_metadata(prefill)
    return cache, table, SimpleNamespace(prefill=prefill, prefill_max_seq_len=433, topk_tokens=2048)


def _new_tokens() -> tuple[Any, Any, Any]:
    torch.manual_seed(2)
    tokens = sum(QUERIES)
    return torch.randn(tokens, HEADS, NOPE + ROPE), torch.randn(tokens, LATENT), torch.randn(tokens, 1, ROPE)


def _context(cache: Any, table: Any, request: int) -> Any:
    """Float32 [context, 576] by the codec."""
    rows = [cache[table[request, place // BLOCK], place % BLOCK] for place in range(CONTEXTS[request])]
    return torch.cat(decode_rows(torch.stack(rows)), -1) if rows else torch.zeros(0, 576)


def _reference(cache: Any, table: Any, projection: Any) -> Any:
    """Float64 attention of every request over its context and, causally, its new tokens."""
    query, latent, rope = (each.double() for each in _new_tokens())
    outputs, first = [], 0
    for request, count in enumerate(QUERIES):
        here = slice(first, first + count)
        first += count
        context = _context(cache, table, request).double()
        keys = torch.cat((context[:, :LATENT], latent[here]))
        ropes = torch.cat((context[:, LATENT:], rope[here, 0]))
        heads = (keys @ projection.weight.double().T).view(-1, HEADS, NOPE + VALUE)
        key = torch.cat((heads[..., :NOPE], ropes[:, None].expand(-1, HEADS, -1)), -1)
        scores = torch.einsum("qhd,khd->hqk", query[here], key) * SCALE
        future = torch.ones(count, len(keys), dtype=torch.bool).triu(CONTEXTS[request] + 1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, heads[..., NOPE:]).flatten(1))
    return torch.cat(outputs)


def _attend(kind: Any, workspace_rows: int) -> tuple[Any, Any]:
    cache, table, metadata = _batch(workspace_rows)
    impl = _impl(kind)
    output = torch.full((sum(QUERIES), HEADS * VALUE), float("nan"))
    impl.forward_mha(*_new_tokens(), cache, metadata, torch.tensor(1.0), output)
    return output, _reference(cache, table, impl.kv_b_proj)


@pytest.mark.parametrize("kind", [FlashInferMLASparseImpl, FlashMLASparseImpl])
def test_stock_asks_its_gather_for_a_dtype_that_it_does_not_know(gpu: None, kind: Any) -> None:
    with pytest.raises(RuntimeError, match="Unsupported data type of kv cache: nvfp4_ds_mla"):
        _attend(kind, 512)


@pytest.mark.parametrize("kind", [FlashInferMLASparseImpl, FlashMLASparseImpl])
@pytest.mark.parametrize("workspace_rows", [512, 192, 64])
def test_a_context_is_attended_to_in_as_many_chunks_as_vllm_plans(served: None, kind: Any, workspace_rows: int) -> None:
    """One chunk for all requests, then contexts that continue in the next chunk; a request without context between."""
    output, right = _attend(kind, workspace_rows)

    assert torch.allclose(output.double(), right, atol=2e-5, rtol=1e-4)


def test_the_replacement_is_one_record_and_leaves_other_dtypes_alone() -> None:
    """Applied to vLLM's function as it is installed, whose CUDA code a CPU wheel does not have; then put back."""
    stock = ops.gather_and_maybe_dequant_cache
    register = Register("flashinfer_nvfp4", [patch for patch in REGISTER.patches if patch.id in CONTEXT])
    cache, out = encode_rows(torch.full((1, 64, 512), 6.0), torch.ones(1, 64, 64)), torch.zeros(9, 576)
    table, starts = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 5], dtype=torch.int32)
    try:
        assert [row.status for row in register.apply().rows] == ["applied"]
        replaced = ops.gather_and_maybe_dequant_cache
        replaced(cache, out, table, starts, torch.zeros(5), 5, "nvfp4_ds_mla", torch.ones(1))
        with pytest.raises(AttributeError, match="gather_and_maybe_dequant_cache"):
            replaced(cache, out, table, starts, torch.zeros(5), 5, "fp8", torch.ones(1))
    finally:
        register.revert()

    assert out.sum(1).tolist() == [6.0 * 512 + 64] * 5 + [0.0] * 4
    assert ops.gather_and_maybe_dequant_cache is stock
    assert register.obsolete() == ()


@pytest.mark.parametrize(("cache_dtype", "activated"), [("nvfp4_ds_mla", 1), ("fp8_ds_mla", 0)])
def test_layers_that_are_left_to_stock_get_their_context_too(
    monkeypatch: pytest.MonkeyPatch, cache_dtype: str, activated: int
) -> None:
    """As FLASHMLA_SPARSE on 10.x: its rows are stock's to read, and its other cache dtypes are not touched."""

    class Stock:
        def __init__(self, kv_cache_dtype: str) -> None:
            self.kv_cache_dtype = kv_cache_dtype

    class Backend:
        stock = SimpleNamespace(get_impl_cls=lambda: Stock)

        @staticmethod
        def reads(cache_dtype: str) -> bool:
            return False

    calls: list[None] = []
    monkeypatch.setattr(context_gather, "activate", lambda: calls.append(None))
    built = backend._impl(Backend)(kv_cache_dtype=cache_dtype)

    assert type(built) is Stock
    assert len(calls) == activated


@pytest.mark.parametrize("workspace_rows", [512, 128])
def test_each_rank_of_decode_context_parallelism_gathers_its_part(workspace_rows: int) -> None:
    """Two ranks that hold every other position, as vLLM plans their chunks; its own code puts the parts together."""
    ranks = 2
    cache, table, _ = _batch(BLOCK)
    whole = [_context(cache, table, request) for request in range(len(CONTEXTS))]
    parts = [[values[rank::ranks] for values in whole] for rank in range(ranks)]
    caches, tables = zip(*(_local_cache(rank, cache, table) for rank in range(ranks)), strict=True)
    chunked = mla_attention.build_mla_chunked_context_metadata(
        context_lens_cpu=torch.tensor(CONTEXTS, dtype=torch.int32),
        prefill_query_start_loc_cpu=torch.arange(len(CONTEXTS) + 1, dtype=torch.int32),
        chunked_prefill_workspace=torch.zeros(1, 576),
        chunked_prefill_workspace_size=workspace_rows,
        block_size=BLOCK,
        align_chunk_to_block=True,
        device=torch.device("cpu"),
        dcp_world_size=ranks,
        dcp_local_block_size=1,
        dcp_virtual_block_size=ranks,
    )
    gathered: list[list[Any]] = [[] for _ in CONTEXTS]
    for chunk in chunked.chunks:
        rows, here = chunk.num_local_context_tokens, chunk.request_slice
        local = torch.full((ranks * rows, 576), float("nan"))
        for rank in range(ranks):
            part = local[rank * rows : (rank + 1) * rows]
            starts = chunk.padded_local_cu_seq_lens
            gather_context(caches[rank], part, tables[rank][here], starts, rows, chunk.starts)
        latent, rope = mla_attention.reorg_kvcache(
            local[:, None, :LATENT],
            local[:, None, LATENT:],
            padded_local_chunk_seq_lens_lst=chunk.padded_local_seq_lens,
            local_context_lens_allranks=chunk.local_context_lens_allranks,
            local_starts=chunk.local_starts,
            sum_seq_len=chunk.num_context_tokens,
            max_seq_len=chunk.max_seq_len,
            toks=rows,
        )
        both = torch.cat((latent, rope), -1)[:, 0]
        for request, values in zip(range(here.start, here.stop), both.split(chunk.seq_lens.tolist()), strict=True):
            gathered[request].append(values)

    assert len(chunked.chunks) == {512: 2, 128: 5}[workspace_rows]
    for request, values in enumerate(gathered):
        got = torch.cat(values) if values else torch.zeros(0, 576)
        assert sorted(map(tuple, got.tolist())) == sorted(map(tuple, whole[request].tolist()))
    assert sum(len(each) for each in parts[0]) == 249  # of 497


def _local_cache(rank: int, cache: Any, table: Any) -> tuple[Any, Any]:
    """Every other row of each context, in blocks of its own."""
    local = torch.full((8, BLOCK, 352), 0xFF, dtype=torch.uint8)
    tables = torch.zeros(len(CONTEXTS), 3, dtype=torch.int32)
    used = 0
    for request, context in enumerate(CONTEXTS):
        for place, position in enumerate(range(rank, context, 2)):
            if place % BLOCK == 0:
                tables[request, place // BLOCK] = used
                used += 1
            row = cache[table[request, position // BLOCK], position % BLOCK]
            local[tables[request, place // BLOCK], place % BLOCK] = row
    return local, tables


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": torch.zeros(1, 64, 352, dtype=torch.float16)}, r"cache float16.*a cache of bytes"),
        ({"out": torch.zeros(9, 512)}, r"out float32 \[9, 512\].*\[5 or more, 576\]"),
        ({"out": torch.zeros(4, 576)}, r"5 rows.*\[5 or more, 576\].*another geometry"),
        ({"starts": torch.zeros(3, dtype=torch.int32)}, r"starts int32 \[3\].*Pass the tables of one batch"),
    ],
)
def test_what_is_no_context_is_refused(change: Any, message: str) -> None:
    given = {
        "cache": torch.zeros(1, 64, 352, dtype=torch.uint8),
        "out": torch.zeros(9, 576),
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "starts": torch.tensor([0, 5], dtype=torch.int32),
        "rows": 5,
        "first": None,
        **change,
    }
    with pytest.raises(LaunchRefused, match=message):
        gather_context(**given)
