"""Our statistics inside vLLM's: joined over ranks, sent between processes, reset, and in its log line."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Call


def _transfer(blocks: int, runs: int, post_us: float = 100.0, transfer_us: float = 1000.0) -> Any:
    from vllm_blhnc.transfers import Transfer

    return Transfer("r", "READ", "BLHNC", blocks, runs, 1, runs, blocks * 1024, post_us, transfer_us)


def _record(stats: Any, *transfers: Any) -> Any:
    """As a worker does: stock records what NIXL says, and the same transfer is recorded here."""
    from types import SimpleNamespace

    for transfer in transfers:
        stats.record_transfer(
            SimpleNamespace(
                xferDuration=transfer.transfer_us,
                postDuration=transfer.post_us,
                totalBytes=transfer.nbytes,
                descCount=transfer.descriptors,
            )
        )
        stats.record_blocks(transfer, row_padding=24)
    return stats


def _joined_over_ranks() -> list[Any]:
    from vllm_blhnc.metrics import BlockRowStats

    first = _record(BlockRowStats(), _transfer(10, 2))
    first.record_rows("BLHNC", 1, 1024, 24)
    second = _record(BlockRowStats(), _transfer(30, 2, post_us=300))
    second.record_refused_peer()
    empty = BlockRowStats()
    joined = first.aggregate(pickle.loads(pickle.dumps(second))).aggregate(empty)
    return [joined.data, joined.reduce()]


def test_ranks_are_joined_and_summed_up_in_the_log_line(call: Call) -> None:
    data, summary = call(_joined_over_ranks)

    assert [transfer["padding"] for transfer in data["blhnc_transfers"]] == [10 * 24, 30 * 24]
    assert data["blhnc_rows"] == [{"layout": "BLHNC", "regions": 1, "nbytes": 1024, "padding": 24}]
    assert data["blhnc_refused"] == [1]
    assert data["num_descriptors"] == [2, 2]  # stock's own
    assert summary["Num successful transfers"] == 2
    assert summary["Avg runs"] == 2  # (2 + 2) / 2
    assert summary["Avg blocks per run"] == 10  # 40 / 4
    assert summary["Posting share"] == 0.2  # 400 / 2000
    assert (summary["NIXL regions"], summary["Row bytes"]) == (1, 1024)


def _through_the_engine_queue() -> list[Any]:
    """The encoding between engine and API process is vLLM's own."""
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from vllm_blhnc.connector import NixlConnector
    from vllm_blhnc.metrics import BlockRowStats

    stats = _record(BlockRowStats(), _transfer(10, 2))
    stats.record_rows("BLHNC", 1, 1024, 24)
    sent = EngineCoreOutputs(scheduler_stats=SchedulerStats(kv_connector_stats=stats.to_dict()))
    got = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(sent))
    rebuilt = NixlConnector.build_kv_connector_stats(got.scheduler_stats.kv_connector_stats)
    return [type(rebuilt).__name__, rebuilt.data == stats.data, rebuilt.reduce() == stats.reduce()]


def test_statistics_arrive_in_the_api_process_as_they_were_sent(call: Call) -> None:
    assert call(_through_the_engine_queue) == ["BlockRowStats", True, True]


def _taken_twice() -> list[Any]:
    from vllm_blhnc.connector import NixlConnector
    from vllm_blhnc.metrics import BlockRowStats

    fresh = NixlConnector.build_kv_connector_stats()
    empty = [BlockRowStats().is_empty(), fresh.is_empty()]
    for record in ("record_rows", "record_refused_peer", "record_failed_transfer"):
        stats = BlockRowStats()
        getattr(stats, record)(*(("BLHNC", 1, 1024, 24) if record == "record_rows" else ()))
        empty.append(stats.is_empty())
    stats = _record(BlockRowStats(), _transfer(10, 2))
    taken = stats.clone_and_reset()
    _record(stats, _transfer(7, 1))
    blocks = [[t["blocks"] for t in each.data["blhnc_transfers"]] for each in (taken, stats)]
    return [empty, type(taken).__name__, blocks, [each.data["num_descriptors"] for each in (taken, stats)]]


def test_what_was_taken_is_not_taken_again(call: Call) -> None:
    empty, kind, blocks, stock = call(_taken_twice)

    assert empty == [True, True, False, False, False]
    assert kind == "BlockRowStats"
    assert blocks == [[10], [7]]
    assert stock == [[2], [1]]


def _in_multi_connector() -> list[Any]:
    """MultiConnector finds the class of its child by name, and so stock's, to log what ours has sent."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorStats

    from vllm_blhnc.metrics import BlockRowStats

    def sent(*transfers: Any) -> Any:
        return MultiKVConnectorStats(data={"NixlPullConnector": _record(BlockRowStats(), *transfers)}).to_dict()

    first, second = (
        MultiConnector.build_kv_connector_stats(sent(transfer)) for transfer in (_transfer(10, 2), _transfer(30, 2))
    )
    joined = first.aggregate(second)
    data = joined.to_dict()["NixlPullConnector"]
    summary = joined.reduce()["NixlPullConnector"]
    return [[t["blocks"] for t in data["blhnc_transfers"]], summary["Num successful transfers"], joined.is_empty()]


def test_statistics_go_through_multi_connector(call: Call) -> None:
    assert call(_in_multi_connector) == [[10, 30], 2, False]


def _without_telemetry() -> list[Any]:
    """A telemetry of None, which stock's statistics allow since 0.32."""
    from vllm_blhnc.transfers import RecordingAgent

    class Agent:
        def make_prepped_xfer(self, *arguments: Any) -> int:
            return 1

        def get_xfer_telemetry(self, handle: int) -> None:
            return None

    seen: list[Any] = []
    agent = RecordingAgent(Agent(), "BLHNC", lambda: 1, seen.append)
    telemetry = agent.get_xfer_telemetry(agent.make_prepped_xfer("READ", 1, [1], 2, [1], b"r:1"))
    return [telemetry, seen]


def test_a_transfer_without_telemetry_leaves_no_record(call: Call) -> None:
    assert call(_without_telemetry) == [None, []]


def _assigned_by_reset() -> list[bool]:
    from vllm_blhnc.metrics import BlockRowStats

    assigned: list[bool] = []

    class Watched(BlockRowStats):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "data":
                assigned.append("blhnc_refused" in value)
            super().__setattr__(name, value)

    watched = Watched()
    assigned.clear()
    watched.reset()
    return assigned


def test_a_reset_never_shows_half_the_statistics(call: Call) -> None:
    """A handshake's thread records its refusal whenever it comes."""
    assert call(_assigned_by_reset) == [True]
