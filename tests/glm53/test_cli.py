"""The command line: help that names every command, exit codes, and errors before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from glm53.cli import app
from glm53.model.folder import MANIFEST, make

runner = CliRunner()


def _recipe(tmp_path: Path, model: Path, extra: str = "") -> Path:
    path = tmp_path / "small.yaml"
    text = f"name: small\nmodel: {{path: {model}, served_name: tiny}}\nworkers: {{prefill: 1, decode: 1}}\n{extra}"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "command",
    [
        *("up", "down", "status", "roll", "agent-demo", "lint", "render", "model make", "model verify", "plan blhnc"),
        *("models", "chat", "batch", "edge run", "edge drain"),
    ],
)
def test_every_command_has_help(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_nothing_running_is_said_and_is_no_success_for_status(tmp_path: Path) -> None:
    status = runner.invoke(app, ["status", "--run-dir", str(tmp_path), "--json"])
    down = runner.invoke(app, ["down", "--run-dir", str(tmp_path), "--json"])

    assert (status.exit_code, json.loads(status.stdout)["processes"]) == (1, [])
    assert (down.exit_code, json.loads(down.stdout)) == (0, {"ended": False})


@pytest.mark.parametrize("command", ["up", "agent-demo"])
def test_a_broken_deployment_is_a_configuration_error(tmp_path: Path, command: str) -> None:
    recipe = _recipe(tmp_path, tmp_path / "model", "engine: {blocksize: 64}\n")
    result = runner.invoke(app, [command, "-d", str(recipe), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert "engine.blocksize" in result.stderr
    assert not (tmp_path / "run").exists()


def test_worker_numbers_on_the_command_line_are_checked_like_the_file(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, tmp_path / "model")
    result = runner.invoke(app, ["up", "-d", str(recipe), "--decode", "0"])

    assert result.exit_code == 2
    assert "half-disaggregated" in result.stderr


@pytest.mark.parametrize("command", ["up", "agent-demo"])
@pytest.mark.parametrize(("dtype", "code"), [("fp8_ds_mla", "cache-dtype"), ("int4", "bad-value")])
def test_a_cache_dtype_on_the_command_line_is_checked_like_the_file(
    tmp_path: Path, command: str, dtype: str, code: str
) -> None:
    recipe = _recipe(tmp_path, tmp_path / "model")
    result = runner.invoke(app, [command, "-d", str(recipe), "--kv-cache-dtype", dtype])

    assert result.exit_code == 2
    assert f"small.yaml with engine.kv_cache_dtype={dtype} has 1 problem" in result.stderr
    assert f"[{code}]" in result.stderr


@pytest.mark.parametrize("options", [["--port", "-1"], ["--port", "0"], ["--port", "70000"], ["--timeout", "0"]])
def test_numbers_that_cannot_be_meant_are_usage_errors(tmp_path: Path, options: list[str]) -> None:
    recipe = _recipe(tmp_path, tmp_path / "model")
    result = runner.invoke(app, ["up", "-d", str(recipe), *options])

    assert result.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in result.stderr


def test_a_demo_that_would_outgrow_the_model_is_refused_before_it_starts(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, tmp_path / "model")
    result = runner.invoke(app, ["agent-demo", "-d", str(recipe), "--prompt", "8000"])

    assert result.exit_code == 2
    assert "engine.max_model_len=8192" in " ".join(result.stderr.replace("│", " ").split())


def test_a_run_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make(model, layers=4, seed=0)
    recipe = _recipe(tmp_path, model)
    result = runner.invoke(app, ["up", "-d", str(recipe), "--run-dir", str(recipe)])

    assert result.exit_code == 1
    assert "is a file" in result.stderr
    assert runner.invoke(app, ["status", "--run-dir", str(recipe)]).exit_code == 1


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, tmp_path / "nowhere")
    result = runner.invoke(app, ["up", "-d", str(recipe)])

    assert result.exit_code == 2
    assert str(tmp_path / "nowhere") in result.stderr


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("made_here", [True, False], ids=["made", "downloaded"])
def test_a_model_folder_that_lacks_a_file_is_refused_before_anything_starts(
    tmp_path: Path, missing: str, made_here: bool
) -> None:
    model = tmp_path / "model"
    make(model, layers=4, seed=0)
    (model / missing).unlink()
    if not made_here:
        (model / MANIFEST).unlink()
    recipe = _recipe(tmp_path, model)
    result = runner.invoke(app, ["up", "-d", str(recipe), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert missing in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_in_shards_needs_all_of_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make(model, layers=4, seed=0)
    (model / MANIFEST).unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    result = runner.invoke(app, ["up", "-d", str(_recipe(tmp_path, model)), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert "model-00002-of-00002.safetensors" in result.stderr


def test_a_damaged_state_file_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{", encoding="utf-8")
    result = runner.invoke(app, ["down", "--run-dir", str(tmp_path)])

    assert result.exit_code == 1
    assert "damaged" in result.stderr


def test_without_its_libraries_the_command_names_the_extra() -> None:
    assert _without("typer") == (2, "recipes")


@pytest.mark.parametrize(("library", "command"), [("numpy", ["model", "make", "m"]), ("openai", ["agent-demo"])])
def test_a_command_that_needs_more_than_the_others_names_its_extra(
    tmp_path: Path, library: str, command: list[str]
) -> None:
    assert _without(library, *command, cwd=tmp_path) == (2, "demo")


def test_planning_and_starting_need_no_more_than_the_recipes_extra() -> None:
    demo = {name for name, extra in _extras() if extra == "demo"} - {"glm53-blackwell"}
    code = "import sys; sys.modules |= dict.fromkeys({}); import glm53.cli, glm53.checks"
    modules = sorted(name.replace("-", "_") for name in demo)
    result = subprocess.run([sys.executable, "-c", code.format(modules)], capture_output=True, text=True, check=False)

    assert {"numpy", "openai", "tokenizers", "safetensors"} <= demo
    assert (result.returncode, result.stderr) == (0, "")


def _extras() -> list[tuple[str, str]]:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    return [
        (Requirement(text).name, extra) for extra, texts in project["optional-dependencies"].items() for text in texts
    ]


def _without(library: str, *command: str, cwd: Path | None = None) -> tuple[int, str]:
    """Exit code of the command where a library is not installed, and the extra that its one line asks for."""
    code = f"import sys; sys.modules[{library!r}] = None; from glm53.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False, cwd=cwd
    )

    (line,) = result.stderr.splitlines()
    assert line.startswith(f"glm53: the Python package {library!r} is not installed.")
    assert line.endswith("in the folder of glm53-blackwell.")
    return result.returncode, line.partition("pip install '.[")[2].partition("]'")[0]
