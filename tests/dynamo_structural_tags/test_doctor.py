"""The doctor: each fault of a deployment is found, named by its code, and comes with what is needed and the fix."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamo_structural_tags import cli, doctor, processes
from dynamo_structural_tags.doctor import CODES, Finding, diagnose, status
from dynamo_structural_tags.probe import probe
from dynamo_structural_tags.processes import Process, Role

RIGHT = {"DYNAMO_STRUCTURAL_TAGS": "enforce", "DYN_PARSER_VERSION": "2"}
WORKER = "python -m dynamo.vllm --model m --dyn-tool-call-parser glm47 --dyn-reasoning-parser glm45"
FRONTEND = "python -m dynamo.frontend --http-port 8000"
SERVE = "vllm serve m --tool-call-parser glm47_safe --reasoning-parser glm45 --enable-auto-tool-choice"


def _process(role: Role, command: str, **environment: str) -> Process:
    return Process(role, tuple(command.split()), RIGHT | environment)


def _found(*given: Process) -> dict[str, Finding]:
    """Findings about these processes that are not fine, by code; those about the installation left out."""
    found = diagnose(list(given), {})
    return {f.code: f for f in found if f.level in ("warning", "error") and not f.code.startswith(("version", "entry"))}


@pytest.fixture(scope="module")
def good() -> list[Process]:
    return [_process("frontend", FRONTEND), _process("worker", WORKER), _process("serve", SERVE)]


def test_a_right_deployment_has_nothing_to_fix(good: list[Process]) -> None:
    assert _found(*good) == {}


@pytest.mark.parametrize(
    ("role", "command", "environment", "code", "level"),
    [
        ("worker", WORKER.replace("parser glm47", "parser=glm45"), {}, "parser-glm45", "error"),
        ("worker", WORKER.replace("glm47", "hermes"), {}, "parser", "warning"),
        ("worker", "python -m dynamo.vllm --dyn-reasoning-parser glm45", {}, "parser", "warning"),
        ("worker", "python -m dynamo.vllm --dyn-tool-call-parser glm47", {}, "reasoning", "warning"),
        (
            "worker",
            WORKER + " --reasoning-parser glm45",
            {"DYN_PARSER_VERSION": "1", "DYNAMO_STRUCTURAL_TAGS": "report"},
            "reasoning",
            "warning",
        ),
        ("worker", WORKER + " --dyn-structural-tag false", {}, "tags-off", "error"),
        ("worker", WORKER, {"DYN_STRUCTURAL_TAG": "false"}, "tags-off", "error"),
        ("worker", WORKER, {"DYN_PARSER_VERSION": ""}, "parser-route", "warning"),
        ("worker", WORKER, {"VLLM_PLUGINS": "dynamo_nixl_telemetry"}, "allow-list", "error"),
        ("worker", WORKER, {"DYNAMO_STRUCTURAL_TAGS": "off"}, "mode", "warning"),
        ("worker", WORKER, {"DYNAMO_STRUCTURAL_TAGS": "report"}, "mode", "warning"),
        ("worker", WORKER, {"DYNAMO_STRUCTURAL_TAGS": "yes"}, "setting", "error"),
        ("frontend", FRONTEND + " --dyn-chat-processor vllm", {}, "parser-route", "warning"),
        ("serve", SERVE.replace("glm47_safe", "glm47"), {}, "parser", "warning"),
        ("serve", "vllm serve m --reasoning-parser glm45", {}, "parser", "warning"),
        ("serve", "vllm serve m --tool-call-parser glm47_safe", {}, "reasoning", "warning"),
        (
            "serve",
            SERVE.replace("glm47_safe", "glm47"),
            {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"},
            "tags-off",
            "error",
        ),
    ],
)
def test_each_fault_is_found_with_what_is_needed_and_the_fix(
    role: Role, command: str, environment: dict[str, str], code: str, level: str
) -> None:
    found = _found(_process(role, command, **environment))

    assert code in found
    assert found[code].level == level
    assert found[code].needed
    assert found[code].fix


@pytest.mark.parametrize(
    ("role", "command", "mode", "owner"),
    [
        ("worker", WORKER, "off", "tag"),
        ("worker", WORKER + " --reasoning-parser glm45", "enforce", "tag"),
        ("worker", WORKER + " --reasoning-parser glm45", "off", "engine"),
        ("serve", SERVE, "enforce", "tag"),
        ("serve", SERVE, "report", "engine"),
    ],
)
def test_who_owns_the_reasoning_is_told(role: Role, command: str, mode: str, owner: str) -> None:
    found = diagnose([_process(role, command, DYNAMO_STRUCTURAL_TAGS=mode)], {})

    (told,) = [finding.seen for finding in found if finding.code == "reasoning"]
    assert f"the {owner} owns the reasoning" in told


def test_two_versions_of_dynamos_parser_on_two_sides_are_an_error() -> None:
    found = _found(_process("frontend", FRONTEND), _process("worker", WORKER, DYN_PARSER_VERSION="1"))

    assert found["parser-route"].level == "error"


def test_the_route_does_not_matter_behind_this_plugins_frontend() -> None:
    own = _process("frontend", "python -m dynamo_structural_tags.frontend", DYN_PARSER_VERSION="1")

    assert _found(own, _process("worker", WORKER, DYN_PARSER_VERSION="1")) == {}


@pytest.mark.parametrize("value", ["dynamo_nixl_telemetry", "dynamo_nixl_telemetry, dynamo_structural_tags"])
def test_the_allow_list_keeps_the_other_plugins_in_the_fix(value: str) -> None:
    """vLLM strips no spaces: behind one a plugin is another name."""
    found = _found(_process("worker", WORKER, VLLM_PLUGINS=value))

    assert found["allow-list"].fix == "VLLM_PLUGINS=dynamo_nixl_telemetry,dynamo_structural_tags"


def test_an_untested_release_and_a_pair_that_does_not_fit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm": "0.35.0", "ai-dynamo": "1.6.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise doctor.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("importlib.metadata.version", version)

    found = {(f.code, f.level) for f in diagnose([], {})}

    assert ("version", "warning") in found
    assert ("version-pair", "error") in found
    versions["vllm"] = "0.31.0+cpu"
    assert {f.level for f in diagnose([], {}) if f.code.startswith("version")} == {"ok"}


def test_the_exit_status_tells_fine_from_findings_from_no_answer() -> None:
    assert status([Finding("mode", "ok", ""), Finding("metrics", "note", "")]) == 0
    assert status([Finding("mode", "warning", "")]) == 1
    assert status([Finding("mode", "error", ""), Finding("endpoint", "error", "")]) == 2


def test_processes_are_found_by_their_command_lines(tmp_path: Path) -> None:
    def add(pid: int, parent: int, command: str, environment: str = "") -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (folder / "environ").write_bytes(environment.replace(" ", "\0").encode())
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")

    add(1, 0, "init")
    add(10, 1, FRONTEND)
    add(11, 1, WORKER, "DYN_PARSER_VERSION=2 DYN_TOOL_CALL_PARSER=x")
    add(12, 11, WORKER)  # a child that was forked
    add(13, 1, "/opt/bin/python /opt/bin/" + SERVE)
    add(14, 1, "vim vllm_serve_notes.txt")
    add(15, 1, "python -m dynamo_structural_tags.frontend")
    add(16, 1, SERVE.replace("vllm", "python -m vllm.entrypoints.cli.main"))
    add(17, 1, "python -m vllm.entrypoints.cli.main bench serve")
    add(18, 16, "VLLM::EngineCore")

    found = processes.find(tmp_path)

    assert [(p.pid, p.role) for p in found] == [
        (10, "frontend"),
        (11, "worker"),
        (13, "serve"),
        (15, "frontend"),
        (16, "serve"),
    ]
    assert found[1].environment["DYN_PARSER_VERSION"] == "2"
    assert found[1].option("--dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER") == "glm47"
    assert found[0].option("--dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER") is None


@contextmanager
def _endpoint(choice: Any, metrics: str = "") -> Iterator[str]:
    """A fake endpoint whose answer is `choice`; test_tool_calls_engine_stock.py asks a real one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer(metrics.encode() if self.path == "/metrics" else b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if choice is None:
                self.send_error(400, "Invalid structural tag")
            else:
                self._answer(json.dumps({"choices": [choice]}).encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _choice(arguments: str | None, reason: str = "stop") -> dict[str, Any]:
    calls = [{"function": {"name": "doctor_probe", "arguments": arguments}}] if arguments is not None else None
    return {"finish_reason": reason, "message": {"content": "Once", "tool_calls": calls}}


@pytest.mark.parametrize(
    ("choice", "level"),
    [
        (_choice('{"word": "zq7-ack-4e1f", "list": [3, 5]}'), "ok"),
        (_choice('{"word": " zq7-ack-4e1f", "list": [3]}'), "error"),
        (_choice('{"word": "hello", "list": []}'), "error"),
        (_choice('{"word": "zq7-ack-4e1f", "list": "[3"}'), "error"),
        (_choice("{}"), "error"),
        (_choice("no JSON"), "error"),
        (_choice(None), "error"),
        (_choice(None, "length"), "note"),
    ],
)
def test_a_live_endpoints_answer_tells_whether_a_tag_holds_it(choice: Any, level: str) -> None:
    with _endpoint(choice) as url:
        found = {finding.code: finding for finding in probe(url, timeout=10)}

    assert found["tag"].level == level
    assert found["endpoint"].level == "ok"
    assert found["metrics"].level == "note"


def test_counters_of_a_live_endpoint_are_summed_up() -> None:
    text = (
        'dynamo_structural_tags_calls_total{outcome="valid"} 3.0\ndynamo_structural_tags_calls_total{outcome="x"} 0.0\n'
    )
    with _endpoint(_choice("{}"), text) as url:
        found = {finding.code: finding for finding in probe(url, timeout=10)}

    assert found["metrics"].seen == 'dynamo_structural_tags_calls_total{outcome="valid"}=3.0'


def test_an_endpoint_that_refuses_or_is_not_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with _endpoint(None) as url:
        refused = cli.main(["doctor", "--no-processes", "--url", url])
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "HTTP 400" in line]
        assert "<title>Error response</title>" in line  # a page in one line
    gone = cli.main(["doctor", "--no-processes", "--url", url, "--json"])

    assert (refused, gone) == (2, 2)
    printed = json.loads(capsys.readouterr().out)
    assert printed["status"] == 2
    last = printed["findings"][-1]
    assert (last["code"], last["level"]) == ("endpoint", "error")
    assert last["fix"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://a b", ""])
def test_an_address_that_is_none_is_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--no-processes", "--url", url, "--json"]) == 2

    assert json.loads(capsys.readouterr().out)["findings"][-1]["code"] == "endpoint"


@pytest.mark.parametrize("choice", ["text", {"message": "text"}, {"message": {"tool_calls": [1]}}])
def test_an_answer_of_another_form_is_told(choice: Any) -> None:
    with _endpoint(choice) as url:
        (found,) = probe(url, timeout=10)

    assert (found.code, found.level) == ("endpoint", "error")


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "dynamo_structural_tags.cli", "doctor", "--no-processes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_the_help_teaches_and_the_page_has_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--help"])
    assert "Exit status: 0 nothing to do, 1 a warning or an error, 2" in capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text("utf-8")
    for code, meaning in CODES.items():
        assert f"| `{code}` | {meaning} |" in page


def test_every_finding_has_a_code_of_the_table(good: list[Process]) -> None:
    bad = [_process("worker", "python -m dynamo.vllm", VLLM_PLUGINS="", DYNAMO_STRUCTURAL_TAGS="?")]

    assert {f.code for given in ([], good, bad) for f in diagnose(given, {})} <= set(CODES)
