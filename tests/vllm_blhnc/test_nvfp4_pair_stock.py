"""Prefill and decode engines with NVFP4 rows over real NIXL, and the fact about them that both must share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

if TYPE_CHECKING:
    from conftest import Call, Engine, StartEngine

BLOCK = 64  # tokens
ROW = BLOCK * (4 * 352 + 3 * 132)  # bytes: 4 MLA caches and 3 indexer caches; a whole number of 352
NVFP4 = {"kv_cache_dtype": "nvfp4_ds_mla"}


def _prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length)]


PROMPTS = [_prompt(length, seed=length) for length in (40, 128, 450)]
BLOCKS = [1, 2, 8]


@pytest.fixture(scope="module")
def engines(start_engine: StartEngine) -> list[Engine]:
    """Prefill, a decode that writes rows as prefill does, and one that chooses their scales otherwise."""
    started = [
        start_engine("kv_producer", "BLHNC", engine=NVFP4),
        start_engine("kv_consumer", "BLHNC", engine=NVFP4),
        start_engine("kv_consumer", "BLHNC", engine=NVFP4, environment={"FLASHINFER_NVFP4_POLICY": "rtn"}),
    ]
    for engine in started:
        engine.answer()
    return started


def test_352_byte_rows_travel_in_one_descriptor_a_run_and_answer_as_one_engine(engines: list[Engine]) -> None:
    prefill, decode, _ = engines
    alone = prefill.generate(PROMPTS)

    outputs = decode.decode(PROMPTS, prefill.prefill(PROMPTS))

    assert [output["tokens"] for output in outputs] == [output["tokens"] for output in alone]
    assert sorted((one["blocks"], one["nbytes"]) for one in decode.transfers) == [(n, n * ROW) for n in BLOCKS]
    for transfer in decode.transfers:
        assert transfer["regions"] == 1
        assert transfer["descriptors"] == transfer["runs"]
    for engine in (prefill, decode):
        assert f"rows, {ROW} bytes each ({ROW} of KV, aligned to 352)" in engine.log


def test_rows_of_another_policy_are_refused_with_both_values_and_the_setting(engines: list[Engine]) -> None:
    prefill, _, other = engines

    outputs = other.decode(PROMPTS[:1], prefill.prefill(PROMPTS[:1]))

    assert [(output["tokens"], output["finish_reason"]) for output in outputs] == [([], "error")]
    assert other.transfers == []
    said = other.log.partition("HandshakeMismatch: prefill and decode do not agree")[2].splitlines()[0]
    says("peer-fact", said)
    assert (
        "nvfp4_rows is 'nvfp4_ds_mla-352-1/rtn/unfolded' here and 'nvfp4_ds_mla-352-1/search/unfolded' at the peer: "
        "make FLASHINFER_NVFP4_POLICY, FLASHINFER_NVFP4_BACKEND, FLASHINFER_NVFP4_FOLD, FLASHINFER_NVFP4_PREFILL_MIB, "
        "the checkpoint and the glm53-blackwell release equal"
    ) in said
    assert said.count(" equal") == 1
    (output,) = other.generate([PROMPTS[1]])
    assert output["finish_reason"] == "length"


def _start_beside(site: str, model: str) -> None:
    """Start a decode side where the packages in `site` are installed, too."""
    import sys

    import row_workers

    sys.path.insert(0, site)
    row_workers.Side(row_workers.Deployment(model), "kv_consumer")


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ("raise RuntimeError('no such GPU')", "it cannot tell its value (no such GPU)"),
        ("return 7", "its value is 7"),
        ("return 'fine'", None),
    ],
)
def test_a_package_whose_fact_is_broken_stops_the_start(
    call: Call, model: Path, tmp_path: Path, fact: str, said: str | None
) -> None:
    (tmp_path / "tuning.py").write_text(
        f"class Fact:\n    setting = 'TUNING'\n\n    def value(self, vllm_config):\n        {fact}\n"
    )
    info = tmp_path / "tuning-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tuning\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm_blhnc.peer_facts]\nspeed = tuning:Fact\n")

    def start() -> Any:
        return call(_start_beside, str(tmp_path), str(model))

    if said is None:
        start()
        return
    with pytest.raises(RuntimeError) as failed:
        start()
    says("start-peer-fact", str(failed.value))
    assert "'speed' = 'tuning:Fact' of tuning" in str(failed.value)
    assert said in str(failed.value)
