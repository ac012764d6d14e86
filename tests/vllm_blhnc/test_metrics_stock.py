"""Real transfers as vLLM's ``/metrics`` shows them, against the transfer log of the worker that made them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from vllm_blhnc.figures import FIGURES, Figure

if TYPE_CHECKING:
    from conftest import StartEngine, StartServer
    from vllm_server import Server

ROW = 4 * 64 * 576 * 4 + 3 * 64 * 132  # bytes: 4 float32 MLA pages and 3 indexer pages of 64 tokens
LABELS = (("engine", "0"), ("model_name", "glm"))
LENGTHS = (40, 70, 128, 450)  # tokens
BLOCKS = (1, 2, 2, 8)


def _prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length)]


def _within_multi(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": config["kv_role"],
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"connectors": [config]},
    }


#: Decode as one worker, and as two tensor-parallel ones whose connector is inside another.
DECODE: dict[str, dict[str, Any]] = {
    "one": {},
    "two-in-multi": {"arguments": ("--tensor-parallel-size", "2"), "within": _within_multi},
}


@pytest.fixture(scope="module", params=DECODE)
def decode(request: pytest.FixtureRequest, start_engine: StartEngine, start_server: StartServer) -> Server:
    """A decode server that has fetched four prompts and has been refused by a peer."""
    prefill, other = start_engine("kv_producer", "BLHNC"), start_engine("kv_producer", "stock")
    server = start_server("kv_consumer", "BLHNC", environment={"VLLM_LOGGING_LEVEL": "DEBUG"}, **DECODE[request.param])
    prefill.answer()
    prompts = [_prompt(length, seed=length) for length in LENGTHS]
    handoffs = prefill.prefill(prompts)
    alone = [output["tokens"] for output in prefill.generate(prompts)]
    other.answer()
    (elsewhere,) = other.prefill([prompts[1]])
    server.wait()

    answers = [server.complete(prompt, 16, handoff) for prompt, handoff in zip(prompts, handoffs, strict=True)]

    assert [answer["tokens"] for answer in answers] == alone
    # An own prompt: of the others decode has the blocks by now.
    with pytest.raises(OSError, match="HTTP Error 500"):
        server.complete(_prompt(70, seed=5), 16, elsewhere)
    prefill.kill()
    other.kill()
    return server


def _until(true: Callable[[], bool]) -> None:
    """Statistics travel with the engine's next step."""
    until = time.monotonic() + 60
    while not true() and time.monotonic() < until:
        time.sleep(0.2)


def _expected(figure: Figure, transfers: list[dict[str, Any]]) -> list[float]:
    """The observations that the transfer log makes of a histogram, in words of its own."""
    share = [t["post_us"] / t["transfer_us"] for t in transfers]
    return {
        "vllm:blhnc_blocks": [t["blocks"] for t in transfers],
        "vllm:blhnc_runs": [t["runs"] for t in transfers],
        "vllm:blhnc_blocks_per_run": [t["blocks"] / t["runs"] for t in transfers],
        "vllm:blhnc_descriptors": [t["descriptors"] for t in transfers],
        "vllm:blhnc_bytes": [t["nbytes"] for t in transfers],
        "vllm:blhnc_post_seconds": [t["post_us"] * 1e-6 for t in transfers],
        "vllm:blhnc_wire_seconds": [(t["transfer_us"] - t["post_us"]) * 1e-6 for t in transfers],
        "vllm:blhnc_post_share": share,
    }[figure.name]


def test_metrics_are_those_of_the_transfer_log(decode: Server) -> None:
    workers = 2 if "MultiConnector" in decode.log else 1
    transfers = decode.transfers
    assert sorted(t["blocks"] for t in transfers) == sorted(BLOCKS * workers)
    assert [t["regions"] for t in transfers] == [1] * len(transfers)
    _until(lambda: decode.metrics("vllm:blhnc_blocks_count")["vllm:blhnc_blocks_count"][LABELS] == len(transfers))

    shown = decode.metrics("vllm:blhnc_")

    for figure in FIGURES:
        if figure.kind != "histogram":
            continue
        values = _expected(figure, transfers)
        assert shown[f"{figure.name}_count"] == {LABELS: len(values)}, figure.name
        assert shown[f"{figure.name}_sum"] == {LABELS: pytest.approx(sum(values))}, figure.name
        below = {dict(labels)["le"]: count for labels, count in shown[f"{figure.name}_bucket"].items()}
        for edge in figure.buckets:
            (count,) = [count for text, count in below.items() if float(text) == edge]
            assert count == sum(value <= edge for value in values), (figure.name, edge)
    assert shown["vllm:blhnc_bytes_sum"][LABELS] == workers * sum(BLOCKS) * ROW
    assert shown["vllm:blhnc_descriptors_sum"] == shown["vllm:blhnc_runs_sum"]
    assert shown["vllm:blhnc_unmerged_transfers_total"] == {LABELS: 0}
    assert shown["vllm:blhnc_padding_bytes_total"] == {LABELS: 0}


def test_stock_metrics_say_the_same_of_what_both_count(decode: Server) -> None:
    ours, stock = decode.metrics("vllm:blhnc_"), decode.metrics("vllm:nixl_")

    assert stock["vllm:nixl_bytes_transferred_sum"] == ours["vllm:blhnc_bytes_sum"]
    assert stock["vllm:nixl_num_descriptors_sum"] == ours["vllm:blhnc_descriptors_sum"]
    assert stock["vllm:nixl_post_time_seconds_sum"] == {
        LABELS: pytest.approx(ours["vllm:blhnc_post_seconds_sum"][LABELS])
    }


def test_rows_are_shown_with_their_layout(decode: Server) -> None:
    shown = decode.metrics("vllm:blhnc_")
    labels = (LABELS[0], ("layout", "BLHNC"), LABELS[1])

    assert shown["vllm:blhnc_regions"] == {labels: 1}
    assert shown["vllm:blhnc_row_bytes"] == {labels: ROW}
    assert shown["vllm:blhnc_row_padding_bytes"] == {labels: 0}


def test_a_refused_peer_is_counted_by_every_worker_that_refuses(decode: Server) -> None:
    workers = 2 if "MultiConnector" in decode.log else 1
    name = "vllm:blhnc_refused_peers_total"
    _until(lambda: decode.metrics(name)[name][LABELS] >= workers)

    # vLLM's heartbeats shake hands, too, and are refused, where one falls into the time that the request waits.
    assert workers <= decode.metrics(name)[name][LABELS] <= 2 * workers


def test_everything_exported_is_in_the_table_of_figures(decode: Server) -> None:
    suffixes = ("_bucket", "_count", "_sum", "_total", "_created")
    shown = set()
    for name in decode.metrics("vllm:blhnc_"):
        suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), "")
        shown.add(name.removesuffix(suffix))

    assert shown == {figure.name for figure in FIGURES}


def test_each_transfer_has_one_debug_line_with_its_figures(decode: Server) -> None:
    lines = [line.partition("KV transfer ")[2] for line in decode.log.splitlines() if "KV transfer request=" in line]

    def figures(line: str) -> dict[str, str]:
        return dict(part.split("=") for part in line.split())

    expected = [
        {
            "request": t["request"],
            "operation": "READ",
            "layout": "BLHNC",
            "blocks": str(t["blocks"]),
            "runs": str(t["runs"]),
            "blocks_per_run": f"{t['blocks'] / t['runs']:.1f}",
            "regions": "1",
            "descriptors": str(t["descriptors"]),
            "bytes": str(t["nbytes"]),
            "post_us": str(t["post_us"]),
            "wire_us": str(t["transfer_us"] - t["post_us"]),
            "transfer_us": str(t["transfer_us"]),
        }
        for t in decode.transfers
    ]
    assert sorted(map(json.dumps, map(figures, lines))) == sorted(map(json.dumps, expected))
