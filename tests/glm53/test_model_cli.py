"""``glm53 model`` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install '.[demo]'")
typer = pytest.importorskip("typer", reason="needs typer: pip install '.[recipes]'")
from typer.testing import CliRunner  # noqa: E402

from glm53.model.cli import app  # noqa: E402

SMALL = ["--layers", "2", "--hidden", "64", "--experts", "2"]


def _make_command() -> Any:
    return typer.main.get_command(app).commands["make"]


def _run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_make_then_make_again_then_verify(tmp_path: Path) -> None:
    code, output, _ = _run("make", tmp_path / "m", *SMALL)
    assert code == 0
    assert "made; glm_moe_dsa, 2 layers (2 with an indexer), seed 0" in output

    code, output, _ = _run("make", tmp_path / "m", *SMALL)
    assert (code, "already made" in output) == (0, True)

    code, output, _ = _run("verify", tmp_path / "m")
    assert (code, "whole" in output) == (0, True)


def test_every_choice_reaches_the_config(tmp_path: Path) -> None:
    code, output, _ = _run(
        *("make", tmp_path / "m", "--json", "--layers", 5, "--seed", 3, "--architecture", "deepseek_v32"),
        *("--hidden", 192, "--heads", 2, "--experts", 4, "--index-topk", 64, "--index-heads", 40),
        *("--context", 4096, "--mtp", "--dtype", "bfloat16"),
    )
    result = json.loads(output)
    config = result["config"]

    assert code == 0
    assert result["directory"] == str(tmp_path / "m")
    assert result["state"] == "made"
    assert {
        "num_hidden_layers": 5,
        "model_type": "deepseek_v32",
        "hidden_size": 192,
        "num_attention_heads": 2,
        "n_routed_experts": 4,
        "index_topk": 64,
        "index_n_heads": 40,
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 1,
        "dtype": "bfloat16",
    }.items() <= config.items()
    assert json.loads((tmp_path / "m" / "glm53-model.json").read_text())["shape"]["seed"] == 3


def test_a_choice_that_cannot_work_is_a_usage_error(tmp_path: Path) -> None:
    code, output, error = _run("make", tmp_path / "m", "--index-topk", 33)

    assert (code, output) == (2, "")
    assert "index_topk=33" in error
    assert not (tmp_path / "m").exists()


def test_a_foreign_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("")
    code, _, error = _run("make", tmp_path, *SMALL)

    assert (code, "'note'" in error) == (2, True)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, error = _run("make", tmp_path / "file" / "m", *SMALL)

    assert (code, "cannot be written" in error) == (2, True)


def test_verify_fails_on_a_broken_folder(tmp_path: Path) -> None:
    _run("make", tmp_path / "m", *SMALL)
    (tmp_path / "m" / "config.json").unlink()
    code, _, error = _run("verify", tmp_path / "m")

    assert (code, "config.json is missing" in error) == (1, True)


def test_runs_as_a_module_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "glm53.model", "make", str(tmp_path / "m"), *SMALL],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", [parameter.opts[0] for parameter in _make_command().params][1:])
def test_every_option_has_its_row_in_the_docs(option: str) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "model.md"

    assert f"\n| `{option}` |" in page.read_text(encoding="utf-8")
