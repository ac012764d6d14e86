"""The files of `glm53 batch`: what is refused before sending, and that a torn output loses and doubles nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from glm53.cli import app
from glm53.client.batch.requests import InputError, index, read
from glm53.client.batch.results import OutputError, answered, lost, opened, succeeded

runner = CliRunner()
quick = settings(
    max_examples=int(os.environ.get("GLM53_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_bodies = st.dictionaries(st.text().filter(lambda key: key != "stream"), _json, max_size=4)
_ids = st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True)


def _line(name: str, content: dict[str, Any] | None = None, **changes: Any) -> bytes:
    whole = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": content or {}}
    return json.dumps(whole | changes).encode() + b"\n"


def _input(folder: Path, *lines: bytes) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(b"".join(lines))
    return path


@quick
@given(ids=_ids, data=st.data())
def test_every_request_is_read_back_from_its_line(tmp_path: Path, ids: list[str], data: st.DataObject) -> None:
    bodies = {name: data.draw(_bodies) for name in ids}
    blank = data.draw(st.lists(st.sampled_from([b"", b"\n", b"  \n"]), min_size=len(ids), max_size=len(ids)))
    path = _input(tmp_path, *(gap + _line(name, bodies[name]) for name, gap in zip(ids, blank, strict=True)))
    entries = index(path)

    assert [entry.custom_id for entry in entries] == ids
    assert len({entry.id for entry in entries}) == len(ids)
    with path.open("rb") as file:
        for entry in reversed(entries):
            assert read(file, entry).body == bodies[entry.custom_id]


WRONG = {
    b"{": "not JSON",
    b"[]": "no object",
    b'{"custom_id": "\xff"}': "not UTF-8",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/c"}': "body missing",
    _line("x", extra=1).strip(): "unknown key extra",
    _line("").strip(): "custom_id=''",
    _line("x", custom_id=7).strip(): "custom_id=7",
    _line("x", method="GET").strip(): "method='GET'",
    _line("x", url="http://elsewhere/v1/x").strip(): "url='http://elsewhere/v1/x'",
    _line("x", body=[]).strip(): "body is no object but list",
    _line("x", {"stream": True}).strip(): "body.stream",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/c", "body": {"a": NaN}}': "NaN",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/c", "body": {"a": 1, "a": 2}}': "'a' is there twice",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/c", "body": ' + b"[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("wrong", WRONG, ids=list(WRONG.values()))
def test_a_malformed_line_is_named_and_nothing_is_sent(tmp_path: Path, wrong: bytes) -> None:
    path, output = _input(tmp_path, _line("a"), wrong + b"\n", _line("b")), tmp_path / "out.jsonl"
    result = runner.invoke(app, ["batch", str(path), str(output), "--url", "http://127.0.0.1:9"])

    assert result.exit_code == 2
    assert "line 2: " in result.stderr
    assert WRONG[wrong] in result.stderr
    assert not output.exists()


def test_a_repeated_custom_id_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 3: custom_id 'a' is also that of line 1"):
        index(_input(tmp_path, _line("a"), _line("b"), _line("a")))


def test_all_wrong_lines_are_counted_and_the_first_ones_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        index(_input(tmp_path, *[b"{\n"] * 50))

    assert "50 line(s)" in str(refused.value)
    assert "line 20:" in str(refused.value)
    assert "and 30 more" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_input_without_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="no request"):
        index(_input(tmp_path, content))


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        index(tmp_path / "none.jsonl")


def test_an_input_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    path = _input(tmp_path, _line("a", {"n": 1}), _line("b"))
    entries = index(path)
    _input(tmp_path, _line("a", {"n": 2}), _line("b"))
    with path.open("rb") as file, pytest.raises(InputError, match="line 1 has changed"):
        read(file, entries[0])


@quick
@given(ids=_ids, data=st.data())
def test_an_output_cut_anywhere_goes_on_to_exactly_one_result_an_input(
    tmp_path: Path, ids: list[str], data: st.DataObject
) -> None:
    entries = index(_input(tmp_path, *(_line(name) for name in ids)))
    output = tmp_path / "out.jsonl"
    output.unlink(missing_ok=True)
    for _ in range(data.draw(st.integers(1, 3))):  # a killed run after another
        before = {line["custom_id"] for line in _lines(output)}
        with opened(output, entries) as results:
            assert before == results.done.keys()
            for entry in entries:
                if entry.custom_id not in results.done:
                    results.add(answered(entry, 200, "r", {"text": data.draw(st.text())}))
        whole = output.read_bytes()
        output.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with opened(output, entries) as results:
        for entry in entries:
            if entry.custom_id not in results.done:
                results.add(lost(entry, "timeout", data.draw(st.text())))

    assert sorted(line["custom_id"] for line in _lines(output)) == sorted(ids)
    assert output.read_bytes().endswith(b"\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines, and only those."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def test_results_have_the_shape_of_openais_batches(tmp_path: Path) -> None:
    """Source: the "request output object" of OpenAI's batch reference."""
    [entry] = index(_input(tmp_path, _line("a")))
    good, bad, gone = answered(entry, 200, "r", {}), answered(entry, 400, "r", {}), lost(entry, "timeout", "late")

    for result in (good, bad, gone):
        assert result.keys() == {"id", "custom_id", "response", "error"}
    assert good["response"].keys() == {"status_code", "request_id", "body"}
    assert (gone["response"], gone["error"]) == (None, {"code": "timeout", "message": "late"})
    assert [succeeded(result) for result in (good, bad, gone)] == [True, False, False]


def test_a_second_result_is_never_written(tmp_path: Path) -> None:
    [entry] = index(_input(tmp_path, _line("a")))
    with opened(tmp_path / "out.jsonl", [entry]) as results:
        results.add(answered(entry, 200, "r", {}))
        with pytest.raises(RuntimeError, match="second result"):
            results.add(answered(entry, 200, "r", {}))


def test_an_output_of_another_input_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    entries = index(_input(tmp_path, _line("a", {"n": 1}), _line("b")))
    with opened(output, entries) as results:
        results.add(answered(entries[0], 200, "r", {}))
    kept = output.read_bytes()

    with (
        pytest.raises(OutputError, match="another request than 'a' on line 1"),
        opened(output, index(_input(tmp_path, _line("a", {"n": 2})))),
    ):
        pass
    with (
        pytest.raises(OutputError, match="is of 'a', which the input does not have"),
        opened(output, index(_input(tmp_path, _line("c")))),
    ):
        pass
    assert output.read_bytes() == kept


def test_an_output_with_two_results_for_one_request_is_refused(tmp_path: Path) -> None:
    [entry] = entries = index(_input(tmp_path, _line("a")))
    output = tmp_path / "out.jsonl"
    with opened(output, entries) as results:
        results.add(answered(entry, 200, "r", {}))
    output.write_bytes(2 * output.read_bytes())

    with pytest.raises(OutputError, match="line 2 is a second result of 'a'"), opened(output, entries):
        pass


@pytest.mark.parametrize(
    "line",
    [
        b"notes\n",
        b'{"custom_id": [], "id": 1, "error": 1}\n',
        b"{}\n",
        b'{"custom_id": "a", "id": "x", "error": null}\n',
    ],
)
def test_a_file_that_is_no_output_is_left_alone(tmp_path: Path, line: bytes) -> None:
    output = tmp_path / "out.jsonl"
    output.write_bytes(line)
    with (
        pytest.raises(OutputError, match=r"line 1 is (no result|of '\[\]')"),
        opened(output, index(_input(tmp_path, _line("a")))),
    ):
        pass

    assert output.read_bytes() == line


def test_the_input_is_never_taken_for_the_output(tmp_path: Path) -> None:
    path = _input(tmp_path, _line("a"))
    result = runner.invoke(app, ["batch", str(path), str(path), "--url", "http://127.0.0.1:9"])

    assert result.exit_code == 2
    assert "is the input itself" in result.stderr


def test_two_runs_cannot_write_to_one_output(tmp_path: Path) -> None:
    entries = index(_input(tmp_path, _line("a")))
    output = tmp_path / "out.jsonl"
    with opened(output, entries), pytest.raises(OutputError, match="another run writes"), opened(output, entries):
        pass


def test_failures_are_dropped_only_where_they_are_to_be_sent_again(tmp_path: Path) -> None:
    entries = index(_input(tmp_path, _line("a"), _line("b"), _line("c")))
    output = tmp_path / "out.jsonl"
    with opened(output, entries) as results:
        results.add(answered(entries[0], 200, "r", {}))
        results.add(lost(entries[1], "timeout", "late"))
    with opened(output, entries) as results:
        assert results.done == {"a": True, "b": False}
    with opened(output, entries, again=True) as results:
        assert results.done == {"a": True}
        with pytest.raises(OutputError, match="another run writes"), opened(output, entries):
            pass
        results.add(answered(entries[1], 200, "r", {}))

    assert [line["custom_id"] for line in _lines(output)] == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.jsonl"]
