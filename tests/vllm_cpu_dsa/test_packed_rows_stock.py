"""NVFP4 and FP8 rows in a real engine: what is written, what attention reads, and how large a page is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_cache import decode_e4m3
from dsa_engine import ask, engine, environment, generate, installed, layer_caches, prompt

from vllm_cpu_dsa.rows import Fp8Rows

PROMPTS = [prompt(50, 1), prompt(300, 2)]
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
POLICY = "FLASHINFER_NVFP4_POLICY"


def read_nvfp4(rows: np.ndarray) -> np.ndarray:
    """float64 [n, 576] of uint8 [n, 352], by the published format and without the plugin's codec."""
    codes = np.stack((rows[:, :256] & 15, rows[:, :256] >> 4), -1).reshape(len(rows), 512)
    values = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]
    scales = np.stack([decode_e4m3(rows[:, 320 + 8 * (block % 4) + block // 4]) for block in range(32)], -1)
    return np.concatenate((values * scales.repeat(16, -1), decode_e4m3(rows[:, 256:320])), -1)


READERS = {"nvfp4_ds_mla": (352, read_nvfp4), "fp8": (576, decode_e4m3)}


@dataclass(frozen=True)
class Observed:
    """rows: written rows that were compared with the expected bytes, and how many of them differed.

    attention: query tokens of the last step whose attention was compared, and the largest difference from a
    float64 reference relative to the largest output.
    """

    tokens: list[list[list[int]]]
    cached: list[int]
    strides: dict[str, tuple[int, ...]]
    rows: tuple[int, int]
    attention: tuple[int, float]


def observe(model: Path, cache_dtype: str, environ: dict[str, str], **options: Any) -> Observed:
    """Run an engine and compare each layer's cache with what the layer was given to write."""
    from vllm_cpu_dsa.mla_backend import CpuSparseMLAImpl

    Layer: Any = CpuSparseMLAImpl
    written: dict[int, list[tuple[torch.Tensor, ...]]] = {}
    last: dict[int, tuple[Any, ...]] = {}
    update, attend = Layer.do_kv_cache_update, Layer.forward_mqa

    def recording_update(self: Any, latent: Any, rope: Any, cache: Any, slots: Any, *rest: Any) -> None:
        update(self, latent, rope, cache, slots, *rest)
        if cache.numel():
            count = len(slots.flatten())
            given = (slots.flatten().long(), latent[:count], rope[:count].reshape(count, -1))
            written.setdefault(cache.data_ptr(), []).append(tuple(part.clone() for part in given))

    def recording_attend(self: Any, q: Any, cache: Any, metadata: Any, layer: Any) -> Any:
        out, lse = attend(self, q, cache, metadata, layer)
        whole = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        selected = self.topk_indices_buffer[: len(whole)]
        last[cache.data_ptr()] = (whole.clone(), selected.clone(), metadata.batch.requests, self.scale, out.clone())
        return out, lse

    Layer.do_kv_cache_update, Layer.forward_mqa = recording_update, recording_attend
    try:
        with environment(**environ), installed(None), engine(model, kv_cache_dtype=cache_dtype, **options) as llm:
            rounds = [ask(llm, PROMPTS, 8, False, False) for _ in range(2)]
            caches = layer_caches(llm)
            mla = {c.data_ptr(): c.view(torch.uint8) for name, c in caches.items() if "indexer" not in name}
            assert set(written) == set(last) == set(mla)
            policy = environ.get(POLICY, "search")
            return Observed(
                tokens=[[answer.tokens for answer in answers] for answers in rounds],
                cached=[answer.cached for answer in rounds[1]],
                strides={name: tuple(cache.stride()) for name, cache in caches.items()},
                rows=_compare_rows(mla, written, cache_dtype, policy),
                attention=_compare_attention(mla, last, READERS[cache_dtype][1]),
            )
    finally:
        Layer.do_kv_cache_update, Layer.forward_mqa = update, attend


def _compare_rows(mla: dict[int, Any], written: dict[int, Any], cache_dtype: str, policy: Any) -> tuple[int, int]:
    from flashinfer_nvfp4.codec import encode_rows

    compared = differing = 0
    for layer, cache in mla.items():
        final: dict[int, tuple[Any, Any]] = {}  # a slot holds what was written to it last
        for slots, latent, rope in written[layer]:
            final |= {int(s): (latent[i], rope[i]) for i, s in enumerate(slots) if s >= 0}
        latents, ropes = (torch.stack(part) for part in zip(*final.values(), strict=True))
        rows = cache[[slot // 64 for slot in final], [slot % 64 for slot in final]]
        if cache_dtype == "fp8":
            values = decode_e4m3(rows.numpy())
            # Nearest e4m3 value: at most half a step away, a step being 1/8 of the power of two, or 2**-9.
            given = torch.cat((latents, ropes), -1).double().numpy()
            step = 2.0 ** np.clip(np.floor(np.log2(np.abs(given) + 1e-300)), -6, 8) / 8
            differing += int((np.abs(values - given) > step / 2).any(-1).sum())
        else:
            differing += int((rows != encode_rows(latents, ropes, policy)).any(-1).sum())
        compared += len(final)
    return compared, differing


def _compare_attention(mla: dict[int, Any], last: dict[int, Any], read: Callable[..., Any]) -> tuple[int, float]:
    compared, worst = 0, 0.0
    for layer, (q, selected, requests, scale, out) in last.items():
        for request in requests:
            for token in range(request.start, request.stop):
                positions = selected[token][selected[token] >= 0].long()
                rows = read(mla[layer][request.blocks[positions // 64], positions % 64].numpy())
                score = q[token].double().numpy() @ rows.T * scale
                weight = np.exp(score - score.max(-1, keepdims=True))
                expected = weight / weight.sum(-1, keepdims=True) @ rows[:, :512]
                worst = max(worst, float(np.abs(out[token].double().numpy() - expected).max() / np.abs(expected).max()))
                compared += 1
    return compared, worst


@pytest.mark.parametrize(
    ("cache_dtype", "policy", "layout"),
    [
        ("nvfp4_ds_mla", None, "BLHNC"),
        ("nvfp4_ds_mla", "rtn", "LBNHC"),
        ("nvfp4_ds_mla", "four_over_six", "BLHNC"),
        ("fp8", None, "BLHNC"),
    ],
)
def test_attention_reads_exactly_the_rows_that_the_policy_writes(
    run: Callable[..., Any], folder: Any, cache_dtype: str, policy: str | None, layout: str
) -> None:
    environ = {"VLLM_KV_CACHE_LAYOUT": layout} | ({POLICY: policy} if policy else {})
    width = READERS[cache_dtype][0]

    found = run(observe, folder(), cache_dtype, environ)

    assert found.cached == [0, 256]
    assert found.tokens[1] == found.tokens[0]
    # 4 layers; in the second round 256 of the 350 prompt tokens are cached and their rows stand.
    assert found.rows[0] > 4 * (350 + 2 * 7)
    assert found.rows[1] == 0
    assert found.attention[0] == 4 * 2
    assert found.attention[1] < 1e-4
    page, indexer_page = 64 * width, 64 * 132
    block_row = -(-(4 * page + 3 * indexer_page) // width) * width
    for name, strides in found.strides.items():
        expected = block_row if layout == "BLHNC" else indexer_page if "indexer" in name else page
        assert strides[0] == expected, name


# The values of NVFP4 rows, stored as they are: what an engine with an exact cache of these values answers.
VALUES = """
import torch

from flashinfer_nvfp4.codec import decode_rows, encode_rows


class Values:
    name = "values"
    cache_dtypes = ("fp8_ds_mla",)
    row_bytes = 4 * 576

    def encode(self, latent, rope):
        return torch.cat(decode_rows(encode_rows(latent, rope, "search")), -1).view(torch.uint8)

    def decode(self, rows):
        values = rows.contiguous().view(torch.float32)
        return values[:, :512], values[:, 512:]
"""


def test_an_engine_with_a_cache_of_the_decoded_values_answers_alike_to_the_last_bit(
    run: Callable[..., Any], folder: Any, tmp_path: Path
) -> None:
    (tmp_path / "rowvalues.py").write_text(VALUES)
    info = tmp_path / "rowvalues-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rowvalues\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm_cpu_dsa.row_formats]\nvalues = rowvalues:Values\n")

    rows = run(generate, folder(), PROMPTS, tokens=8, kv_cache_dtype="nvfp4_ds_mla")
    values = run(generate, folder(), PROMPTS, tokens=8, kv_cache_dtype="fp8_ds_mla", site=str(tmp_path))
    plain = run(generate, folder(), PROMPTS, tokens=8)

    assert [a.logprobs for a in rows.answers] == [a.logprobs for a in values.answers]
    assert rows.tokens == values.tokens
    assert [a.logprobs for a in rows.answers] != [a.logprobs for a in plain.answers]


def test_drafts_of_the_mtp_layer_are_computed_from_rows_of_the_same_format(
    run: Callable[..., Any], folder: Any
) -> None:
    model = folder(mtp=True)
    drafting = {"method": "mtp", "num_speculative_tokens": 1}

    found = run(
        generate,
        model,
        PROMPTS,
        tokens=8,
        kv_cache_dtype="nvfp4_ds_mla",
        speculative_config=drafting,
        environ={"VLLM_KV_CACHE_LAYOUT": "BLHNC"},
    )
    alone = run(generate, model, PROMPTS, tokens=8, kv_cache_dtype="nvfp4_ds_mla")

    assert found.tokens == alone.tokens
    assert found.metrics["vllm:spec_decode_num_draft_tokens"] > 0
    row = 64 * (5 * 352 + 4 * 132)
    assert {strides[0] for strides in found.strides.values()} == {-(-row // 352) * 352}


def test_fp8_rows_round_to_nearest_even_and_saturate() -> None:
    """Every e4m3 value stays, every middle of two neighbours goes to the even code, and beyond 448 is 448."""
    codes = torch.arange(0x7F, dtype=torch.uint8)
    values = torch.from_numpy(decode_e4m3(codes.numpy()))
    middles = (values[:-1] + values[1:]) / 2
    even = torch.where(codes[:-1] % 2 == 0, codes[:-1], codes[1:])
    given = torch.cat((values, middles, torch.tensor([449.0, 1e30, float("inf")])))
    expected = torch.cat((codes, even, torch.tensor([0x7E] * 3, dtype=torch.uint8)))
    rows = torch.cat((given, -given, torch.zeros(576 - 2 * len(given)))).float()

    found = Fp8Rows().encode(rows[None, :512], rows[None, 512:])[0]

    assert torch.equal(found[: len(given)], expected)
    assert torch.equal(found[len(given) : 2 * len(given)], expected + 0x80)
    latent, rope = Fp8Rows().decode(found[None])
    assert torch.equal(torch.cat((latent, rope), -1)[0, : len(values)].double(), values)
