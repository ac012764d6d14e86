"""``glm53 simulate`` where Dynamo is absent, another release, failing or slow, and where its options cannot be.

The interpreters here are shell scripts that answer as one with Dynamo would: test_simulate_stock.py runs the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from glm53.cli import app
from glm53.simulate.worker import FIELDS

runner = CliRunner(env={"COLUMNS": "120"})
RECIPES = Path(__file__).parents[2] / "recipes"
GB200 = str(RECIPES / "glm53-gb200-nvl72.yaml")

#: Two agents of two turns with equal times, whatever was asked.
RECORDS = [
    [f"agent-{agent}", turn, 0.0, 10.0, 60.0, 90.0, 60.0, 10.0, 1000, 4, 640, None, 50.0, 55.0]
    for agent in range(2)
    for turn in range(2)
]


def _interpreter(folder: Path, probe: str, replay: str) -> str:
    """A stand-in for Python: `probe` answers ``-c``, and `replay` a replay, whose result goes to its last argument."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then\n{probe}\nelse\n{replay}\nfi\n')
    path.chmod(0o755)
    return str(path)


def _answering(folder: Path, completed: int = 4) -> str:
    result = {"dynamo": "1.6.1", "requests": 4, "completed": completed, "fields": FIELDS, "records": RECORDS}
    (folder / "answer.json").write_text(json.dumps(result))
    return _interpreter(folder, "echo 1.6.1", f'cp {folder}/answer.json "$4"')


def _simulate(*options: str) -> Result:
    return runner.invoke(app, ["simulate", GB200, *options])


def test_a_laptop_without_dynamo_is_told_what_to_install(tmp_path: Path) -> None:
    script = "echo \"ModuleNotFoundError: No module named 'dynamo'\" >&2; exit 1"
    result = _simulate("--python", _interpreter(tmp_path, script, "exit 9"))

    assert result.exit_code == 2
    for part in ("No module named 'dynamo'", "ai-dynamo==1.6.1", "make env", "--python", "glm53 plan traffic"):
        assert part in result.stderr


def test_another_release_of_dynamo_is_refused(tmp_path: Path) -> None:
    result = _simulate("--python", _interpreter(tmp_path, "echo 1.7.0", "exit 9"))

    assert result.exit_code == 2
    assert "has Dynamo 1.7.0, whose simulator was not tried. Known is 1.6.1" in result.stderr


def test_no_interpreter_at_all_is_named(tmp_path: Path) -> None:
    result = _simulate("--python", str(tmp_path / "none"))

    assert result.exit_code == 2
    assert "it cannot be run" in result.stderr


def test_a_failed_replay_shows_what_dynamo_said(tmp_path: Path) -> None:
    python = _interpreter(tmp_path, "echo 1.6.1", "echo 'ValueError: engine.bogus' >&2; exit 3")
    result = _simulate("--quick", "--only", "chunk", "--python", python)

    assert result.exit_code == 1
    assert "failed with exit code 3" in result.stderr
    assert "ValueError: engine.bogus" in result.stderr


def test_a_replay_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    python = _interpreter(tmp_path, "echo 1.6.1", "exec sleep 60")
    result = _simulate("--quick", "--only", "chunk", "--minutes", "0.01", "--python", python)

    assert result.exit_code == 1
    assert "the time ran out in dep8-1p4d-8192-kv_router-tier" in result.stderr


def test_an_interrupted_simulation_ends_its_replay(tmp_path: Path) -> None:
    python = _interpreter(tmp_path, "echo 1.6.1", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    command = [sys.executable, "-m", "glm53", "simulate", GB200, "--quick", "--only", "chunk", "--python", python]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        said = process.communicate(timeout=60)[1]

    assert process.returncode == 130
    assert "interrupted" in said
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_requests_that_were_not_completed_are_an_error(tmp_path: Path) -> None:
    result = _simulate("--quick", "--only", "chunk", "--python", _answering(tmp_path, completed=3))

    assert result.exit_code == 1
    assert "completed 3 of 4 requests" in result.stderr


def test_an_earlier_runs_result_and_trace_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    options = ["--sessions", "2", "--rounds", "2", "--only", "chunk", "--keep", str(tmp_path / "kept")]
    assert _simulate(*options, "--python", _answering(tmp_path)).exit_code == 0
    before = (tmp_path / "kept" / "agents-2.jsonl").read_text()
    result = _simulate(*options, "--seed", "1", "--python", _interpreter(tmp_path, "echo 1.6.1", "exit 0"))

    assert result.exit_code == 1
    assert "failed with exit code 0" in result.stderr
    assert (tmp_path / "kept" / "agents-2.jsonl").read_text() != before


def test_standard_output_is_json_and_progress_goes_elsewhere(tmp_path: Path) -> None:
    options = ["--sessions", "2", "--rounds", "2", "--only", "router,chunk", "--repeats", "2"]
    result = _simulate(*options, "--json", "--python", _answering(tmp_path))
    data = json.loads(result.stdout)

    assert result.exit_code == 0
    assert [(row["comparison"], row["label"]) for row in data["rows"]] == [
        *(("chunk", "8192"), ("chunk", "4096"), ("router", "round robin"), ("router", "KV router"))
    ]
    assert {row["hit_rate"] for row in data["rows"]} == {0.64}
    assert [check["figure"] for check in data["checks"]] == [
        *("median wait, 4K in 8K", "median TTFT, 8K to 4K", "mean TTFT, 8K to 4K")
    ]
    # Three scenarios, since the recipe is in both comparisons, twice.
    assert "6 of 6" in result.stderr
    assert "7 of" not in result.stderr


def test_quick_says_nothing_about_published_figures(tmp_path: Path) -> None:
    result = _simulate("--quick", "--rounds", "2", "--only", "chunk", "--json", "--python", _answering(tmp_path))
    data = json.loads(result.stdout)

    assert (data["quick"], data["checks"]) == (True, [])
    assert any("--quick" in note for note in data["notes"])


def test_the_tables_name_sources_verdicts_and_what_is_not_simulated(tmp_path: Path) -> None:
    result = _simulate("--sessions", "2", "--rounds", "2", "--python", _answering(tmp_path))

    assert result.exit_code == 0, result.stderr
    for part in ("not published", "TEP8", "DEP8", "round robin", "1:8", "Beside the published", "not reproduced"):
        assert part in result.stdout
    assert "docs/structural_tags.md" in result.stdout


def test_the_shared_pool_that_replay_cannot_run_is_given_as_arithmetic(tmp_path: Path) -> None:
    """Two agents fit everywhere: of 16 turns from 140,000 tokens on, each but the first finds the one before it."""
    result = _simulate("--sessions", "2", "--rounds", "2", "--only", "tier", "--json", "--python", _answering(tmp_path))
    data = json.loads(result.stdout)

    best = sum(140_000 + 6_000 * turn for turn in range(15)) / sum(140_000 + 6_000 * turn for turn in range(16))
    assert data["shared_pool"] == {"without": best, "shared": best, "best": best}
    assert any("plan tier" in note and f"{best:.1%}" in note for note in data["notes"])


def test_a_real_trace_takes_the_agents_place_and_stays_as_it_is(tmp_path: Path) -> None:
    trace = tmp_path / "real.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}\n')
    options = ["--trace", str(trace), "--only", "ratio", "--keep", str(tmp_path / "kept"), "--json"]
    result = _simulate(*options, "--python", _answering(tmp_path))
    data = json.loads(result.stdout)
    jobs = [json.loads(path.read_text()) for path in (tmp_path / "kept").glob("*.job.json")]

    assert (data["trace"], data["checks"]) == (str(trace), [])
    assert {tuple(job["trace"]) for job in jobs} == {(str(trace),)}
    assert {job["trace_block"] for job in jobs} == {512}
    assert sorted(job["decode_groups"] for job in jobs) == [2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "speed"], "'speed' is no comparison. Allowed are shape, chunk, router, tier, pool, ratio."),
        (["--sessions", "0"], "sessions=0: it must be a whole number from 1"),
        (["--prompt", "390000"], "above the recipe's engine.max_model_len=400,000"),
        (["--trace", "none.jsonl"], "none.jsonl: No such file"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(tmp_path: Path, options: list[str], message: str) -> None:
    result = _simulate(*options, "--python", _interpreter(tmp_path, "exit 9", "exit 9"))

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_trace_that_is_too_long_for_the_recipe_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    line: dict[str, Any] = {"timestamp": 0, "input_length": 399_999, "output_length": 2}
    trace.write_text(json.dumps(line | {"hash_ids": list(range(782))}))
    result = _simulate("--trace", str(trace))

    assert result.exit_code == 2
    assert "its longest prompt with its answer has 400,001 tokens, above engine.max_model_len=400,000" in result.stderr


@pytest.mark.parametrize(
    ("recipe", "message"), [("glm53-cpu.yaml", "hardware=cpu"), ("none.yaml", "Name an existing YAML file")]
)
def test_recipes_that_cannot_be_simulated_are_refused(recipe: str, message: str) -> None:
    result = runner.invoke(
        app, ["simulate", str(RECIPES / recipe), "--prompt", "1000", "--append", "100", "--output", "9"]
    )

    assert result.exit_code == 2
    assert message in result.stderr


def test_the_worker_needs_nothing_but_dynamo() -> None:
    """It runs under an interpreter that may not have this project: it imports the standard library, and Dynamo late."""
    source = (RECIPES / "glm53" / "simulate" / "worker.py").read_text()
    top = [line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))]

    assert {name.partition(".")[0] for name in top} <= {*sys.stdlib_module_names, "__future__"}


@pytest.mark.parametrize("command", [["simulate"], ["plan", "traffic"]])
def test_the_page_has_every_option(command: list[str]) -> None:
    page = (RECIPES.parent / "docs" / "simulate.md").read_text(encoding="utf-8")
    found: Any = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    options = {option for parameter in found.params for option in parameter.opts if option.startswith("--")}

    assert len(options) > 10
    assert not {option for option in options if f"`{option}" not in page} - {"--help"}
