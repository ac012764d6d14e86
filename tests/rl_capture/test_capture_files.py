"""Files of records: whole after a kill, bounded in size, closed once, and each writer's own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from capture_records import record

from rl_capture.files import CLOSED, OPEN, Writer, listed
from rl_capture.reading import faults, records
from rl_capture.record import line

LINE = b"x" * 99 + b"\n"

KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from capture_records import record
from rl_capture.files import Writer
from rl_capture.record import line
writer = Writer(Path(sys.argv[1]), 1 << 14, 1 << 30)
for number in range(10**9):
    assert writer.append(line(record(number))) == "written"
    print(number, flush=True)
"""


def _kinds(folder: Path) -> list[str]:
    return [OPEN if path.name.endswith(OPEN) else CLOSED for path in listed(folder)]


def test_a_full_file_is_closed_and_the_next_begun(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 250, 10_000)
    for _ in range(5):
        assert writer.append(LINE) == "written"
    assert _kinds(tmp_path) == [CLOSED, CLOSED, OPEN]

    writer.close()
    writer.close()
    assert _kinds(tmp_path) == [CLOSED] * 3
    assert [path.stat().st_size for path in listed(tmp_path)] == [200, 200, 100]


def test_an_empty_file_does_not_stay(tmp_path: Path) -> None:
    Writer(tmp_path, 250, 10_000).close()

    assert listed(tmp_path) == []


def test_nobody_else_may_read_the_records(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "new" / "records", 250, 10_000)

    assert stat.S_IMODE((tmp_path / "new" / "records").stat().st_mode) == 0o700
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600


def test_a_full_folder_takes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 250, 500)

    assert [writer.append(LINE) for _ in range(7)] == ["written"] * 5 + ["full"] * 2
    assert writer.dropped == 0
    assert sum(path.stat().st_size for path in listed(tmp_path)) == 500


def test_the_oldest_closed_files_go_where_the_setting_says_so(tmp_path: Path) -> None:
    times = iter(range(1_700_000_000, 1_700_001_000))
    writer = Writer(tmp_path, 250, 500, drop_oldest=True, clock=lambda: next(times))
    lines = [f"{number:099}\n".encode() for number in range(12)]
    for one in lines:
        assert writer.append(one) == "written"
        assert sum(path.stat().st_size for path in listed(tmp_path)) <= 500
    writer.close()

    kept = b"".join(path.read_bytes() for path in listed(tmp_path))
    assert kept == b"".join(lines[-4:])
    assert writer.dropped == 4


def test_a_line_larger_than_the_folder_is_told_apart(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 100, 300)

    assert writer.append(b"x" * 301) == "large"
    assert writer.append(b"x" * 250) == "written"  # larger than a file: has one of its own


def test_files_of_others_count(tmp_path: Path) -> None:
    one, two = Writer(tmp_path, 1000, 500), Writer(tmp_path, 1000, 500)
    for _ in range(4):
        assert one.append(LINE) == "written"
    two._looked = float("-inf")  # as after a second

    assert [two.append(LINE), two.append(LINE)] == ["written", "full"]


def test_a_live_writers_file_is_left_alone(tmp_path: Path) -> None:
    one = Writer(tmp_path, 1000, 5000)
    one.append(LINE)
    two = Writer(tmp_path, 1000, 5000)

    assert two.recovered == 0
    one.append(LINE)
    one.close()
    assert listed(tmp_path)[0].read_bytes() == 2 * LINE


def test_another_machines_file_is_closed_after_a_day_and_its_writer_goes_on(tmp_path: Path) -> None:
    other = tmp_path / f"capture-20260101T000000-elsewhere-1-000001{OPEN}"
    descriptor = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, LINE + b"half")
    os.close(descriptor)

    assert Writer(tmp_path, 1000, 5000).recovered == 0
    os.utime(other, (1, 1))
    assert Writer(tmp_path, 1000, 5000).recovered == 1
    assert (tmp_path / other.name.replace(OPEN, CLOSED)).read_bytes() == LINE


def test_a_file_that_another_machine_closed_is_no_error_for_its_writer(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 150, 5000)
    writer.append(LINE)
    writer.path.rename(writer.path.with_name("capture-taken.jsonl"))

    assert writer.append(LINE) == "written"
    writer.close()
    assert len(listed(tmp_path)) == 2


def test_a_file_that_was_taken_for_left_behind_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer starts between the making of the file and its lock."""
    stock = fcntl.flock
    calls: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not calls:
            calls.append(descriptor)
            listed(tmp_path)[0].unlink()
        stock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    writer = Writer(tmp_path, 1000, 5000)
    writer.append(LINE)

    assert writer.path.read_bytes() == LINE


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path, 1000, 5000)
    writer.append(LINE)
    stock = os.write

    def short(descriptor: int, data: bytes) -> int:
        if len(data) == 60:
            raise OSError(28, "No space left on device")
        return stock(descriptor, bytes(data)[:40])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="No space"):
        writer.append(LINE)
    monkeypatch.undo()

    assert writer.path.read_bytes() == LINE
    assert writer.append(LINE) == "written"


def test_a_writer_killed_at_any_time_loses_no_record_that_was_written(tmp_path: Path) -> None:
    for run in range(3):
        folder = tmp_path / str(run)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = [int(next(process.stdout)) for _ in range(150 + 41 * run)]
        process.send_signal(signal.SIGKILL)
        told += [int(rest) for rest in process.stdout.read().split("\n")[:-1]]
        process.wait()

        # An unfinished line, as a kill inside of the kernel's write would leave it.
        under_way = [path for path in listed(folder) if path.name.endswith(OPEN)]
        with under_way[0].open("ab") as file:
            file.write(line(record(10**8))[:50])
        before = [one["output"]["ids"][0] for path in listed(folder) for one in records(path)]
        writer = Writer(folder, 1 << 14, 1 << 30)
        writer.close()

        found = [one["output"]["ids"][0] for path in listed(folder) for one in records(path)]
        assert writer.recovered == 1
        assert before == found
        assert found[: len(told)] == told == list(range(len(told)))
        assert len(found) <= len(told) + 1  # written, and killed before it said so
        assert [fault for path in listed(folder) for fault in faults(path)] == []
        assert _kinds(folder) == [CLOSED] * len(listed(folder))
        assert json.loads(listed(folder)[0].read_bytes().splitlines()[0])["request"] == "cmpl-0"
