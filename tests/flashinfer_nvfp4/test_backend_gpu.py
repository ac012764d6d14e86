"""The vLLM backend on a GPU: attention with every kernel that is there, CUDA graphs, and an engine.

python -m pytest tests/flashinfer_nvfp4/test_backend_gpu.py -rs
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device: run this file on a GPU machine", allow_module_level=True)
if torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs compute capability 9.0 or later", allow_module_level=True)
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM's CUDA wheel, 0.31.0 to 0.33.0", allow_module_level=True)

import attention_calls
from attention_batch import APART, CASES, Batch, close
from kernel_calls import cached

from flashinfer_nvfp4.codec import encode_rows
from flashinfer_nvfp4.dispatch import Shape, choose
from flashinfer_nvfp4.installed import built
from flashinfer_nvfp4.settings import BACKEND, KERNELS

QUERY_SCALE = SimpleNamespace(_q_scale_float=1.0)
FP8_ROWS_ERROR = 0.06
"""Of a head's largest element, where rows are rounded to e4m3 once more: up to 2^-4 of each value."""


@pytest.fixture(params=KERNELS)
def kernel(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(BACKEND, request.param)
    monkeypatch.setenv("FLASHINFER_NVFP4_POLICY", "search")
    attention_calls.configure()
    return request.param


def _skip_unless_it_fits(kernel: str, heads: int, topk: int, lse: bool = False) -> None:
    capability = torch.cuda.get_device_capability()
    choice = choose(Shape(capability, heads, topk, lse, 64, graphs=True), built(capability), kernel)
    if choice.kernel is None:
        pytest.skip(choice.reason)


def _on_gpu(case: dict[str, Any]) -> dict[str, Any]:
    """The case on the GPU, its cache with the same distance between blocks."""
    moved = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in case.items()}
    cache = case["cache"]
    whole = cache.as_strided(((cache.shape[0] - 1) * cache.stride(0) + 64 * 352,), (1,)).cuda()
    moved["cache"] = whole.as_strided(cache.shape, cache.stride())
    return moved


def _prepared(case: dict[str, Any], shard: tuple[int, int] = (1, 0)) -> Any:
    impl = attention_calls.implementation(case["heads"], case["topk"], shard)
    rope, scale = case["rope"].unsqueeze(1), torch.ones(1, device="cuda")
    impl.do_kv_cache_update(case["latent"], rope, case["cache"], case["slots"], "nvfp4_ds_mla", scale)
    return impl


def _query(impl: Any, case: dict[str, Any]) -> Any:
    """As the layer hands it over: packed FP8 where the implementation asks for it."""
    return case["query"].to(torch.float8_e4m3fn) if impl.supports_quant_query_input else case["query"]


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64_over_the_rows_it_wrote(kernel: str, name: str) -> None:
    lengths, new, decode_tokens, heads, apart = CASES[name]
    batch = Batch(lengths, new, heads, apart, topk=512)
    _skip_unless_it_fits(kernel, heads, 512)
    case = _on_gpu(batch.case(decode_tokens))
    impl = _prepared(case)
    query = _query(impl, case)
    out, _ = impl.forward_mqa(query, case["cache"], attention_calls.metadata_of(case), QUERY_SCALE)

    batch.query = query.float().cpu()
    slots = torch.tensor([batch.slot(*key) for key in batch.keys])
    rows = dict(zip(batch.keys, cached(case["cache"].cpu(), slots), strict=True))
    assert torch.equal(torch.stack([*rows.values()]), encode_rows(batch.latent, batch.rope, "search"))
    assert impl.choice.kernel == kernel
    close(
        out.cpu(),
        batch.reference(lambda request, at: rows[request, at])[0],
        FP8_ROWS_ERROR if kernel == "gather" else 5e-3,
    )


def test_a_decode_step_replays_in_a_cuda_graph_with_other_requests(kernel: str) -> None:
    """What a graph reads is in tensors: index rows, requests, block tables, queries and the cache itself."""
    _skip_unless_it_fits(kernel, 16, 512)
    first, second = (_on_gpu(Batch([130, 70, 200], [1, 1, 1], 16, APART, seed, topk=512).case(3)) for seed in (1, 2))
    impl = _prepared(first)
    query = _query(impl, first)
    metadata = attention_calls.metadata_of(first)

    def step() -> Any:
        return impl.forward_mqa(query, first["cache"], metadata, QUERY_SCALE)[0]

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for name in ("topk", "block_table", "cache"):
        first[name].copy_(second[name])
    _prepared(first | {name: second[name] for name in ("latent", "rope", "slots")})
    query.copy_(_query(impl, second))
    graph.replay()
    replayed = recorded.clone()

    assert replayed.any()
    assert torch.equal(replayed, step())


@pytest.mark.parametrize("ranks", [2])
def test_a_shards_output_and_log_sum_exp_are_those_of_float64(kernel: str, ranks: int) -> None:
    _skip_unless_it_fits(kernel, 16, 512, lse=True)
    batch = Batch([200], [2], 16, topk=512)
    mine = [(i, at) for i, (_, at) in enumerate(batch.keys) if at % ranks == 1]
    chosen = torch.tensor([i for i, _ in mine])
    slots = torch.tensor([batch.slot(0, at // ranks) for _, at in mine])
    shared = {"latent": batch.latent[chosen], "rope": batch.rope[chosen], "slots": slots, "heads": 16 // ranks}
    case = _on_gpu(batch.case(2) | shared)
    impl = _prepared(case, (ranks, 1))
    query = _query(impl, case)
    out, lse = impl.forward_mqa(query, case["cache"], attention_calls.metadata_of(case), QUERY_SCALE)

    batch.query = query.float().cpu()
    batch.topk[batch.topk % ranks != 1] = -1
    rows = encode_rows(batch.latent, batch.rope, "search")
    right, sums = batch.reference(lambda request, at: rows[at])
    error = FP8_ROWS_ERROR if kernel == "gather" else 5e-3
    close(out.cpu(), right, error)
    assert impl.lse_base_on_e
    assert (lse.double().cpu() - sums).abs().max() < (0.05 if kernel == "gather" else 1e-3)


ENGINE = """
import json, os, sys

from vllm import LLM, SamplingParams

prompts = [{"prompt_token_ids": [(i * 37 + s) % 251 for i in range(n)]} for s, n in ((1, 150), (2, 40), (3, 700))]
found = {}
for name, cache, eager in (("bf16", "auto", True), ("eager", "nvfp4_ds_mla", True), ("graphs", "nvfp4_ds_mla", False)):
    llm = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=2048, max_num_batched_tokens=512, max_num_seqs=4,
              gpu_memory_utilization=0.3, enforce_eager=eager, kv_cache_dtype=cache, seed=0)
    wanted = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    outputs = [llm.generate(prompts, wanted, use_tqdm=False) for _ in range(2)][-1]  # the second has prefix hits
    found[name] = [[list(o.outputs[0].token_ids), [p[t].logprob for p, t in zip(o.outputs[0].logprobs,
                    o.outputs[0].token_ids)]] for o in outputs]
    llm.llm_engine.engine_core.shutdown()
    del llm
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


def test_an_engine_serves_the_rows_with_and_without_graphs(tmp_path: Path) -> None:
    """The small model with GLM-5.3's cache geometry: prefill in chunks, prefix hits, decode.

    Its weights are random, so an error of attention shows in the log probabilities at once.
    """
    pytest.importorskip("safetensors", reason="needs the demo extra: make test")
    from glm53.model import make

    make(tmp_path / "model", layers=4, dtype="bfloat16")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "FLASHINFER_NVFP4"))}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert "decodes NVFP4 rows" in done.stdout + done.stderr
    assert "folded the latents of" in done.stdout + done.stderr
    for (tokens, eager), (same, graphs) in zip(found["eager"], found["graphs"], strict=True):
        assert tokens == same
        assert max(abs(a - b) for a, b in zip(eager, graphs, strict=True)) < 0.05
    for (tokens, plain), (others, rows) in zip(found["bf16"], found["eager"], strict=True):
        shared = next((i for i, pair in enumerate(zip(tokens, others, strict=True)) if len({*pair}) > 1), len(tokens))
        assert shared > 0
        assert max(abs(a - b) for a, b in zip(plain[:shared], rows[:shared], strict=True)) < 0.5
