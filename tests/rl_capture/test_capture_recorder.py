"""The queue in front of the writer: bounded, never waited for, and emptied at the end."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl_capture.files import Writer, listed
from rl_capture.recorder import Recorder


class Counted:
    """Stands for the counters."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, name: str, amount: float = 1, result: str | None = None) -> None:
        self.seen[result or name] += int(amount)


def _recorder(folder: Path, make: Any, limit: int = 100, **writer: Any) -> tuple[Recorder, Counted]:
    counted = Counted()
    sizes = {"file_bytes": 1000, "total_bytes": 5000} | writer
    return Recorder(Writer(folder, **sizes), make, limit, counted), counted


def test_what_was_offered_is_written_when_the_process_ends(tmp_path: Path) -> None:
    recorder, counted = _recorder(tmp_path, lambda answer: [f"{answer}\n".encode()])
    for number in range(20):
        assert recorder.offer(number, 1)
    recorder.close()
    recorder.close()

    (path,) = listed(tmp_path)
    assert path.read_text() == "".join(f"{number}\n" for number in range(20))
    assert counted.seen["written"] == 20
    assert counted.seen["bytes"] == path.stat().st_size


def test_a_writer_that_is_slow_costs_records_and_no_waiting(tmp_path: Path) -> None:
    """The first answer is in the works until it is let go; of 100 tokens in all the others may have 60."""
    begun, go = threading.Event(), threading.Event()

    def make(answer: int) -> list[bytes]:
        begun.set()
        assert go.wait(60)
        return [f"{answer}\n".encode()]

    recorder, counted = _recorder(tmp_path, make)
    assert recorder.offer(0, 40)
    assert begun.wait(60)
    assert [recorder.offer(number, 20) for number in range(1, 6)] == [True, True, True, False, False]
    go.set()
    recorder.close()

    assert listed(tmp_path)[0].read_text() == "0\n1\n2\n3\n"
    assert (counted.seen["written"], counted.seen["queue"]) == (4, 2)


def test_a_prompt_larger_than_the_whole_bound_passes_an_empty_queue(tmp_path: Path) -> None:
    recorder, counted = _recorder(tmp_path, lambda answer: [b"x\n"])

    assert recorder.offer("long", 10**9)
    recorder.close()
    assert counted.seen["written"] == 1


def test_one_record_that_cannot_be_made_does_not_cost_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, counted = _recorder(tmp_path, lambda answer: [answer + b"\n"])
    for answer in (b"a", "not bytes", b"b"):
        recorder.offer(answer, 1)
    recorder.close()

    assert listed(tmp_path)[0].read_bytes() == b"a\nb\n"
    assert (counted.seen["written"], counted.seen["failed"]) == (2, 1)
    assert "TypeError" in caplog.text


def test_a_full_folder_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder, counted = _recorder(
        tmp_path, lambda answer: [b"x" * 9 + b"\n"], limit=1000, file_bytes=20, total_bytes=40
    )
    for _ in range(8):
        recorder.offer("x", 1)
    recorder.close()

    assert (counted.seen["written"], counted.seen["full"]) == (4, 4)
    assert caplog.text.count("RL_CAPTURE_TOTAL_BYTES") == 1


def test_dropped_files_are_counted(tmp_path: Path) -> None:
    recorder, counted = _recorder(
        tmp_path, lambda answer: [b"x" * 9 + b"\n"], limit=1000, file_bytes=20, total_bytes=40, drop_oldest=True
    )
    for _ in range(8):
        recorder.offer("x", 1)
    recorder.close()

    assert (counted.seen["written"], counted.seen["files_dropped"]) == (8, 2)
