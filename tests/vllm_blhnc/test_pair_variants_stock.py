"""Prefill and decode engines in other set-ups: inside MultiConnector, with MTP, and with other numbers of ranks."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

if TYPE_CHECKING:
    from conftest import Call, Engine, StartEngine


def _prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length)]


PROMPTS = [_prompt(length, seed=length) for length in (40, 128, 450)]
BLOCKS = [1, 2, 8]


def _check(prefill: Engine, decode: Engine) -> None:
    """The tokens of one engine alone, for one region and a descriptor a run."""
    handoffs = prefill.prefill(PROMPTS)

    outputs = decode.decode(PROMPTS, handoffs)

    alone = prefill.generate(PROMPTS)
    assert [output["tokens"] for output in outputs] == [output["tokens"] for output in alone]
    assert sorted(transfer["blocks"] for transfer in decode.transfers) == BLOCKS
    for transfer in decode.transfers:
        assert transfer["regions"] == 1
        assert transfer["descriptors"] == transfer["runs"]


def _beside_another(folder: Path) -> Any:
    """The connector in a MultiConnector, before stock's example that writes KV to files."""

    def within(config: dict[str, Any]) -> dict[str, Any]:
        sibling = {
            "kv_connector": "ExampleConnector",
            "kv_role": config["kv_role"],
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        }
        return {
            "kv_connector": "MultiConnector",
            "kv_role": config["kv_role"],
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"connectors": [config, sibling]},
        }

    return within


def test_rows_work_beside_a_sibling_in_multi_connector(start_engine: StartEngine, tmp_path: Path) -> None:
    engines = [
        start_engine(role, "BLHNC", within=_beside_another(tmp_path / role)) for role in ("kv_producer", "kv_consumer")
    ]
    for engine in engines:
        engine.answer()
        assert str(tmp_path) in engine.log  # the sibling names its folder
        assert "vllm_blhnc: 7 caches in one region of" in engine.log

    _check(*engines)

    for engine in engines:
        engine.kill()


def _layout_beside(sibling: str) -> str | None:
    from types import SimpleNamespace

    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.utils import get_kv_connector_cache_layout

    ours = {"kv_connector": "NixlConnector", "kv_connector_module_path": "vllm_blhnc.connector"}
    children = [ours, {"kv_connector": sibling}]
    transfer = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_producer",
        kv_connector_extra_config={"connectors": [child | {"kv_role": "kv_producer"} for child in children]},
    )
    config: Any = SimpleNamespace(
        kv_transfer_config=transfer,
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(),
    )
    return get_kv_connector_cache_layout(config)


def test_a_sibling_that_asks_for_another_layout_stops_the_start(call: Call) -> None:
    """In vLLM's own words, because only MultiConnector sees both wishes."""
    with pytest.raises(RuntimeError) as failed:
        call(_layout_beside, "OffloadingConnector")

    says("start-sibling-layout", str(failed.value))
    assert "LBHNC" in str(failed.value)
    assert call(_layout_beside, "ExampleConnector") == "BLHNC"


@pytest.fixture(scope="module")
def mtp_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with an MTP layer, which has an indexer of its own: 9 caches."""
    path = tmp_path_factory.mktemp("mtp") / "glm"
    make = [sys.executable, "-m", "glm53.model", "make", str(path), "--mtp"]
    subprocess.run(make, check=True, capture_output=True)
    return path


def test_mtp_on_both_sides_travels_in_the_rows_and_on_one_side_is_refused(
    start_engine: StartEngine, mtp_model: Path
) -> None:
    model = {"model": str(mtp_model)}
    mtp = model | {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    prefill, decode = (start_engine(role, "BLHNC", engine=mtp) for role in ("kv_producer", "kv_consumer"))
    without = start_engine("kv_consumer", "BLHNC", engine=model)
    for engine, caches in ((prefill, 9), (decode, 9), (without, 7)):
        engine.answer()
        assert f"vllm_blhnc: {caches} caches in one region of" in engine.log

    _check(prefill, decode)

    outputs = without.decode(PROMPTS[:1], prefill.prefill(PROMPTS[:1]))
    assert [(output["tokens"], output["finish_reason"]) for output in outputs] == [([], "error")]
    said = without.log.partition("HandshakeMismatch")[2]
    says("peer-speculation", said)
    assert "speculative_method is None here and 'mtp' at the peer: make --speculative-config equal" in said
    assert "packed_member_layouts is 7 pages" in said
    for engine in (prefill, decode, without):
        engine.kill()


def test_two_prefill_ranks_feed_one_decode_rank(start_engine: StartEngine) -> None:
    """Every rank holds the same rows; decode reads those of one."""
    prefill = start_engine("kv_producer", "BLHNC", engine={"tensor_parallel_size": 2})
    decode = start_engine("kv_consumer", "BLHNC")
    prefill.answer()
    decode.answer()

    _check(prefill, decode)

    prefill.kill()
    decode.kill()


def test_requests_aborted_while_their_kv_travels_leave_the_engine_serving(
    start_engine: StartEngine,
) -> None:
    """vLLM's scheduler asserts that it knows each request whose KV arrives, so one that is gone would end it."""
    prefill, decode = (start_engine(role, "BLHNC") for role in ("kv_producer", "kv_consumer"))
    prefill.answer()
    decode.answer()
    _check(prefill, decode)
    aborted = [_prompt(450, seed=seed) for seed in range(2)]
    handoffs = prefill.prefill(aborted)
    known = len(decode.transfers)

    # A stopped process serves no read, so all of them are on their way when their requests are aborted.
    prefill.stop()
    decode.abort_decode(aborted, handoffs)
    assert len(decode.transfers) == known
    prefill.resume()

    # The aborted reads end beside those of new requests.
    prompts = [_prompt(300, seed=1000 + seed) for seed in range(2)]
    alone = prefill.generate(prompts)
    outputs = decode.decode(prompts, prefill.prefill(prompts))
    assert [output["tokens"] for output in outputs] == [output["tokens"] for output in alone]
    assert len(decode.transfers) == known + 4
    prefill.kill()
    decode.kill()
