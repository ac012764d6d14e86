"""What is recorded of a transfer, with an agent that answers by script; NIXL's own answers are in the stock lane."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusal_table import says

from vllm_blhnc.transfers import RecordingAgent, Transfer, append_to


class ScriptedAgent:
    """The calls vLLM makes around a transfer; every handle tells what it was made from."""

    name = "scripted"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.held: set[int] = set()

    def make_prepped_xfer(self, *args: Any, **kwargs: Any) -> int:
        self.calls.append((args, kwargs))
        return len(self.calls)

    def get_xfer_telemetry(self, handle: int) -> Any:
        return SimpleNamespace(descCount=handle * 10, totalBytes=handle * 1000, postDuration=5, xferDuration=70)

    def release_xfer_handle(self, handle: int) -> None:
        if handle in self.held:
            raise RuntimeError("still in flight")

    def get_agent_metadata(self) -> bytes:
        return b"metadata"


def _recording(regions: int = 1) -> tuple[ScriptedAgent, RecordingAgent, list[Transfer]]:
    agent, seen = ScriptedAgent(), list[Transfer]()
    return agent, RecordingAgent(agent, "BLHNC", lambda: regions, seen.append), seen


def test_a_transfer_is_recorded_once_when_its_telemetry_is_read() -> None:
    _, recording, seen = _recording()
    handle = recording.make_prepped_xfer("READ", 1, [5, 6, 9], 2, [1, 2, 3], notif_msg=b"req-7:1")
    assert seen == []

    telemetry = recording.get_xfer_telemetry(handle)
    recording.get_xfer_telemetry(handle)

    assert telemetry.descCount == 10
    assert seen == [
        Transfer(
            request="req-7",
            operation="READ",
            layout="BLHNC",
            blocks=3,
            runs=2,
            regions=1,
            descriptors=10,
            nbytes=1000,
            post_us=5,
            transfer_us=70,
        )
    ]


def test_blocks_and_runs_are_those_of_one_region() -> None:
    _, recording, seen = _recording(regions=3)
    local = [offset + block for offset in (0, 100, 200) for block in (4, 5, 6, 7)]
    remote = [offset + block for offset in (0, 50, 100) for block in (1, 2, 8, 9)]

    recording.get_xfer_telemetry(recording.make_prepped_xfer("READ", 1, local, 2, remote, b"r:1"))

    assert (seen[0].blocks, seen[0].runs, seen[0].regions) == (4, 2, 3)


def test_a_request_id_may_hold_colons() -> None:
    _, recording, seen = _recording()

    recording.get_xfer_telemetry(recording.make_prepped_xfer("WRITE", 1, [1], 2, [1], b"chat:req:4"))

    assert (seen[0].request, seen[0].operation) == ("chat:req", "WRITE")


def test_the_real_agent_gets_the_call_unchanged() -> None:
    agent, recording, _ = _recording()

    recording.make_prepped_xfer("READ", "local", [1], "remote", [2], b"r:1", ["UCX"], skip_desc_merge=True)
    recording.make_prepped_xfer("READ", "local", [1], "remote", [2], notif_msg=b"r:1")

    assert agent.calls == [
        (("READ", "local", [1], "remote", [2], b"r:1", ["UCX"]), {"skip_desc_merge": True}),
        (("READ", "local", [1], "remote", [2], b"r:1"), {}),
    ]


def test_everything_else_reaches_the_real_agent() -> None:
    _, recording, _ = _recording()

    assert recording.name == "scripted"
    assert recording.get_agent_metadata() == b"metadata"
    with pytest.raises(AttributeError, match="no_such_call"):
        recording.no_such_call()


def test_a_released_transfer_leaves_no_record() -> None:
    _, recording, seen = _recording()
    handle = recording.make_prepped_xfer("READ", 1, [1], 2, [1], b"r:1")

    recording.release_xfer_handle(handle)
    recording.get_xfer_telemetry(handle)

    assert seen == []


def test_a_transfer_that_cannot_be_released_yet_is_still_recorded() -> None:
    agent, recording, seen = _recording()
    handle = recording.make_prepped_xfer("READ", 1, [1], 2, [1], b"r:1")
    agent.held.add(handle)

    with pytest.raises(RuntimeError, match="still in flight"):
        recording.release_xfer_handle(handle)
    recording.get_xfer_telemetry(handle)

    assert len(seen) == 1


TRANSFER = Transfer("r", "READ", "BLHNC", 8, 1, 1, 1, 4_921_344, 8.0, 16_332.0)


def test_the_log_holds_one_readable_line_a_transfer_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "new" / "transfers.jsonl"
    write = append_to(str(path))
    write(TRANSFER)
    write(TRANSFER)

    lines = path.read_text().splitlines()

    assert len(lines) == 2
    assert json.loads(lines[1]) == {
        "request": "r",
        "operation": "READ",
        "layout": "BLHNC",
        "blocks": 8,
        "runs": 1,
        "regions": 1,
        "descriptors": 1,
        "nbytes": 4_921_344,
        "post_us": 8.0,
        "transfer_us": 16_332.0,
    }


def test_an_older_log_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "transfers.jsonl"
    append_to(str(path))(TRANSFER)
    append_to(str(path))(TRANSFER)

    assert len(path.read_text().splitlines()) == 2


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path, tmp_path / "file" / "transfers.jsonl"):
        with pytest.raises(ValueError, match="Correct the path or leave the setting out") as refused:
            append_to(str(path))
        says("start-transfer-log", str(refused.value))
        assert f"blhnc.transfer_log={str(path)!r}" in str(refused.value)


def test_a_full_disk_ends_the_log_but_no_transfer(caplog: pytest.LogCaptureFixture) -> None:
    """``/dev/full`` takes no byte."""
    write = append_to("/dev/full")

    with caplog.at_level(logging.ERROR, logger="vllm.vllm_blhnc"):
        logging.getLogger("vllm.vllm_blhnc").addHandler(caplog.handler)
        write(TRANSFER)
        write(TRANSFER)
        logging.getLogger("vllm.vllm_blhnc").removeHandler(caplog.handler)

    (message,) = {record.getMessage() for record in caplog.records}
    assert message == "transfer_log=/dev/full ends here: [Errno 28] No space left on device; serving goes on"


def test_a_log_in_the_home_folder_is_written_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    append_to("~/transfers.jsonl")(TRANSFER)

    assert (tmp_path / "transfers.jsonl").read_text().count("\n") == 1


def test_a_log_that_would_wait_or_cannot_be_named_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((str(tmp_path / "pipe"), "a pipe, which would wait"), ("a\0b", "null byte")):
        with pytest.raises(ValueError, match=why) as refused:
            append_to(path)
        says("start-transfer-log", str(refused.value))
