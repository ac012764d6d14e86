"""The backend's attention on CPU tensors: stock's own classes and kernels around this package's, in the interpreter.

One process of its own runs them all (`attention_calls`); the reference is float64 over the rows that are in the cache.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

import attention_calls
import kernel_calls
import torch
from attention_batch import APART, CASES, Batch, close
from attention_calls import loaded, saved
from kernel_calls import cache_of, cached

from flashinfer_nvfp4.codec import encode_rows

if not (kernel_calls.TRITON / "triton").is_dir():
    # The other lines of the support matrix borrow it; their own kernels' tests stay skipped.
    kernel_calls.TRITON = Path(__file__).parents[2] / ".venv" / "triton"
if why := kernel_calls.missing():
    pytest.skip(why, allow_module_level=True)


@pytest.fixture(scope="module")
def child() -> Iterator[Callable[..., Any]]:
    with kernel_calls.interpreter() as run:
        run(attention_calls.start, "search", str(kernel_calls.TRITON))

        def call(function: Callable[..., bytes], request: Any) -> Any:
            return loaded(run(function, request if isinstance(request, str) else saved(request)))

        yield call


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64_over_the_rows_it_wrote(child: Any, name: str) -> None:
    lengths, new, decode_tokens, heads, apart = CASES[name]
    batch = Batch(lengths, new, heads, apart)
    cache, out, lse, _, decoder = child(attention_calls.attend, batch.case(decode_tokens, parted="two parts" in name))

    assert decoder == "TritonDecoder"
    assert lse is None
    assert out.shape == (sum(new), heads, 512)
    rows = {key: cached(cache, torch.tensor(batch.slot(*key))) for key in batch.keys}
    assert torch.equal(torch.stack([rows[key] for key in batch.keys]), encode_rows(batch.latent, batch.rope, "search"))
    close(out, batch.reference(lambda request, at: rows[request, at])[0])


@pytest.mark.parametrize(("ranks", "interleave"), [(2, 1), (4, 16)])
def test_shards_of_a_context_merge_to_the_whole_by_stocks_own_merge(child: Any, ranks: int, interleave: int) -> None:
    """Decode context parallelism: each rank keeps every ranks-th group of tokens and attends with all heads."""
    batch = Batch([200, 70], [1, 2], 8)
    parts = []
    for rank in range(ranks):
        mine = [(i, key) for i, key in enumerate(batch.keys) if (key[1] // interleave) % ranks == rank]
        local = {key: key[1] // (ranks * interleave) * interleave + key[1] % interleave for _, key in mine}
        slots = torch.tensor([batch.slot(key[0], local[key]) for _, key in mine])
        chosen = torch.tensor([i for i, _ in mine])
        shared = {"latent": batch.latent[chosen], "rope": batch.rope[chosen], "slots": slots}
        case = batch.case(3, shard=(ranks, rank), interleave=interleave, **shared)
        parts.append(child(attention_calls.attend, case | {"heads": 8 // ranks}))
    outs, sums = torch.stack([part[1] for part in parts]), torch.stack([part[2] for part in parts])
    natural = {part[3] for part in parts}

    rows = dict(zip(batch.keys, encode_rows(batch.latent, batch.rope, "search"), strict=True))
    right, total = batch.reference(lambda request, at: rows[request, at])
    assert natural == {True}
    torch.testing.assert_close(sums.double().logsumexp(0), total, atol=1e-5, rtol=1e-5)
    for merged in child(attention_calls.merge, (outs.float(), sums, True)):
        close(merged, right)


def test_a_shard_without_any_chosen_key_adds_nothing(child: Any) -> None:
    batch = Batch([40], [1], 4)
    batch.topk[0] = -1
    batch.topk[0, :3] = torch.tensor([0, 2, 38])  # all even: rank 1 has none
    case = batch.case(1, shard=(2, 1), latent=batch.latent[:1], rope=batch.rope[:1], slots=torch.tensor([5]))
    _, out, lse, _, _ = child(attention_calls.attend, case)

    assert not out.any()
    assert torch.equal(lse, torch.full((1, 4), -math.inf))


def test_the_models_fused_path_writes_the_codecs_rows_and_gives_attention_the_same_as_before(child: Any) -> None:
    """Stock's real kernel, interpreted; with another cache dtype it is stock's writer that writes."""
    torch.manual_seed(5)
    angles = torch.outer(torch.arange(8.0), 10_000 ** -(torch.arange(32) / 32))
    case = {
        "kv_c": torch.randn(5, 512).bfloat16() * 3,
        "q_c": torch.randn(5, 2048).bfloat16(),
        "norm": torch.rand(512).bfloat16() + 0.5,
        "k_pe": torch.randn(5, 64).bfloat16(),
        "cos_sin": torch.cat([angles.cos(), angles.sin()], 1).bfloat16(),
        "slots": torch.tensor([3, -1, 70, 71, 5]),
        "cache": cache_of(torch.zeros(128, 352, dtype=torch.uint8), apart=APART, filler=0),
        "dtype": "nvfp4_ds_mla",
    }
    cache, normed, latent, rope = child(attention_calls.fused_write, case)
    plain = {"cache": torch.zeros(2, 64, 576).bfloat16(), "dtype": "auto"}
    stock_cache, *stock = child(attention_calls.fused_write, case | plain)

    written = torch.tensor([3, 70, 71, 5])
    assert torch.equal(cached(cache, written), encode_rows(latent, rope, "search")[[0, 2, 3, 4]])
    untouched = torch.ones(128, dtype=torch.bool)
    untouched[written] = False
    assert not cached(cache, untouched.nonzero()[:, 0]).any()
    for ours, theirs in zip((normed, latent, rope), stock, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(stock_cache[written // 64, written % 64, :512], latent[[0, 2, 3, 4]])


def test_vllms_own_layer_is_built_on_it_and_gets_stocks_metadata(child: Any, tmp_path: Path) -> None:
    """The last test of this process, because it gives attention a real configuration."""
    from glm53.model.shape import Shape

    (tmp_path / "config.json").write_text(json.dumps(Shape(layers=1, hidden=64, mtp=False).config()))
    found = child(attention_calls.real_layer, str(tmp_path))
    requests = found.pop("requests")

    assert tuple(found.pop(name) for name in ("name", "implementation", "builder")) in (
        ("FLASHMLA_SPARSE", "SparseRowsImpl", "RowsMetadataBuilder"),
        ("TRITON_MLA_SPARSE_NVFP4", "Nvfp4MLASparseImpl", "Nvfp4MLASparseMetadataBuilder"),  # in a staged tree
    )
    assert found == {
        "dtype": "nvfp4_ds_mla",
        "query": False,
        "page": 64 * 352,
        "alignment": 352,
        "block_size": 64,
        "written": "search",
    }
    assert requests.tolist() == [0, 1, *[2] * 20]
