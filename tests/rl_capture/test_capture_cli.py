"""``rl-capture`` on a folder of two closed files and one under way."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from capture_records import record

from rl_capture import parquet
from rl_capture.cli import main
from rl_capture.files import CLOSED, OPEN
from rl_capture.parquet import COLUMNS, row
from rl_capture.record import line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six records: two and three in closed files, one and a half in the one under way."""
    place = tmp_path / "records"
    place.mkdir()
    first = [record(0), record(1, session="agent-1", finish="abort")]
    second = [record(2), record(3, weights=_weights(begin="a", end="b")), record(4, weights=_weights(epoch=[1, 1]))]
    (place / f"capture-20260101T000000-h-1-000001{CLOSED}").write_bytes(b"".join(map(line, first)))
    (place / f"capture-20260101T000001-h-1-000002{CLOSED}").write_bytes(b"".join(map(line, second)))
    (place / f"capture-20260101T000002-h-1-000003{OPEN}").write_bytes(line(record(5)) + line(record(6))[:40])
    (place / "notes.txt").write_text("not ours")
    return place


def _weights(**changed: Any) -> dict[str, Any]:
    return record()["weights"] | changed


def test_ls_tells_files_records_and_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert [(one["records"], one["closed"], one["prompt_tokens"], one["output_tokens"]) for one in told] == [
        (2, True, 6, 4),
        (3, True, 9, 6),
        (1, False, 3, 2),
    ]
    assert told[0]["finish"] == {"abort": 1, "stop": 1}
    assert main(["ls", str(folder)]) == 0
    assert "1 records (stop 1)  3 + 2 tokens  under way" in capsys.readouterr().out


def test_show_finds_requests_and_sessions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), "--session", "agent-1", "--whole"]) == 0
    assert json.loads(capsys.readouterr().out) == record(1, session="agent-1", finish="abort")

    assert main(["show", str(folder), "--request", "nobody"]) == 1
    assert "no record matches" in capsys.readouterr().err


def test_show_tells_long_lists_by_their_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.jsonl"
    ids = list(range(20))
    file.write_bytes(line(record(output={"ids": ids, "logprobs": None, "logprobs_mode": ""})))

    assert main(["show", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["output"]["ids"] == "20 numbers"


def test_export_joins_all_files_and_leaves_others_alone(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"

    assert main(["export", str(folder), "-o", str(out)]) == 0
    assert [json.loads(text)["request"] for text in out.read_text().splitlines()] == [f"cmpl-{n}" for n in range(6)]
    assert out.stat().st_mode & 0o777 == 0o600  # as the records themselves
    before = out.read_bytes()
    assert main(["export", str(folder), "-o", str(out)]) == 2
    assert out.read_bytes() == before


def test_unmixed_keeps_answers_that_are_surely_of_one_set_of_weights(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"

    assert main(["export", str(folder), "-o", str(out), "--unmixed"]) == 0
    assert [json.loads(text)["request"] for text in out.read_text().splitlines()] == [
        *("cmpl-0", "cmpl-1", "cmpl-2", "cmpl-5")
    ]


def test_verify_names_file_line_and_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    closed = sorted(folder.glob(f"*{CLOSED}"))[0]
    closed.write_bytes(line(record(0)) + b"{]\n" + line(record(1, v=9)) + line(record(2))[:-20])
    capsys.readouterr()

    assert main(["verify", str(folder), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["line"] for one in told] == [2, 3, 4]
    assert main(["verify", str(folder)]) == 1
    assert "3 faults in 3 files" in capsys.readouterr().out


def test_a_damaged_file_is_not_exported_in_part(folder: Path, tmp_path: Path) -> None:
    closed = sorted(folder.glob(f"*{CLOSED}"))[1]
    closed.write_bytes(line(record(2)) + b"{]\n")
    out = tmp_path / "all.jsonl"

    assert main(["export", str(folder), "-o", str(out)]) == 2
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("command", ["ls", "verify", "show"])
def test_a_folder_without_records_is_wrong_usage(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert main([command, str(tmp_path / "none")]) == 2
    assert "RL_CAPTURE_DIR" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"[" * 200_000 + b"\n", line(record(finish=["stop"])), b"\xff\n"])
@pytest.mark.parametrize("command", ["ls", "verify", "show", "export"])
def test_a_damaged_line_is_named_by_every_command(
    command: str, text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.jsonl"
    file.write_bytes(line(record(0)) + text)
    options = ["-o", str(tmp_path / "all.jsonl")] if command == "export" else []

    assert main([command, str(file), *options]) == (1 if command == "verify" else 2)
    told = capsys.readouterr()
    assert (":2: " in told.out) if command == "verify" else ("line 2: " in told.err)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("number", ["0", "-1", "x", "9" * 30])
def test_a_limit_is_a_whole_number_above_0(number: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["show", str(folder), "--limit", number])
    assert ended.value.code == 2
    assert "no whole number above 0" in capsys.readouterr().err


def test_export_into_no_folder_is_wrong_usage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "-o", str(tmp_path / "none" / "all.jsonl")]) == 2
    assert "Make it first" in capsys.readouterr().err


def test_an_interrupted_export_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(record: dict[str, Any]) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("rl_capture.cli.line", interrupted)

    assert main(["export", str(folder), "-o", str(tmp_path / "all.jsonl")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [folder]


def test_text_that_is_no_utf8_is_shown_and_has_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, made = tmp_path / "one.jsonl", record(session="a\ud800")
    file.write_bytes(line(made))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))

    assert main(["show", str(file), "--whole"]) == 0
    sys.stdout.seek(0)
    assert json.loads(sys.stdout.read()) == made
    assert row(made)["session"] == "a\\ud800"


def test_parquet_without_pyarrow_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "all.parquet"

    assert main(["export", str(folder), "--to", "parquet", "-o", str(out)]) == 1
    said = capsys.readouterr().err
    assert "pip install pyarrow" in said
    assert "--to jsonl" in said
    assert not out.exists()


def test_a_row_has_every_column_and_every_value_of_its_record() -> None:
    made = record(
        1,
        weights=_weights(spans=[["a", 0, 2]], begin="a", end="a", epoch=[2, 2]),
        text={"prompt": "p", "output": "o"},
        stop="END",
    )
    told = row(made)

    assert list(told) == sorted(told, key=list(COLUMNS).index)
    assert set(told) == set(COLUMNS)
    assert (told["prompt_ids"], told["output_ids"], told["logprobs"]) == ([1, 2, 3], [1, 7], [-0.5, -1.25])
    assert (told["weights_begin"], told["weights_epoch_end"], told["stop"]) == ("a", 2, "END")
    assert json.loads(told["weights_spans"]) == [["a", 0, 2]]
    assert json.loads(told["calls"]) == made["calls"]
    assert (told["text_prompt"], row(record())["text_prompt"]) == ("p", None)


def test_parquet_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    """With real pyarrow; the environments of the matrix have none."""
    reader = pytest.importorskip("pyarrow.parquet", reason="needs the extra capture: pip install pyarrow")
    out = tmp_path / "all.parquet"

    assert main(["export", str(folder), "--to", "parquet", "-o", str(out)]) == 0
    table = reader.read_table(out)
    assert table.column_names == list(COLUMNS)
    assert table.to_pylist()[0] == row(record(0))
    assert table.num_rows == 6
    assert parquet.write([], tmp_path / "none.parquet") == 0
