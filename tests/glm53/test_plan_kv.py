"""``glm53 plan kv``: tokens in a GPU's memory, against published figures and plain arithmetic."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glm53.cli import app
from glm53.model.shape import Shape
from glm53.plan.capacity import WORKSPACES, workspace_bytes
from vllm_blhnc.plan import PlanError

runner = CliRunner(env={"COLUMNS": "80"})
GIB = 1 << 30
POOL = "49.41"  # GiB: what 1.09 million tokens of padded fp8 rows take


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """GLM-5.3's 79 MLA and 22 indexer caches."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(Shape(layers=78, mtp=True).config()), encoding="utf-8")
    return path


def _plan(model: Path, *options: str) -> Result:
    return runner.invoke(app, ["plan", "kv", "--model", str(model), *options])


def _data(model: Path, *options: str) -> dict[str, Any]:
    result = _plan(model, *options, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("dtype", "layout", "bytes_per_token"),
    [
        # 79 rows of MLA and 22 of 132 bytes, as vLLM's own planner gives them.
        ("fp8", "LBNHC", 48_408),
        ("nvfp4_ds_mla", "LBNHC", 30_712),
        ("fp8_ds_mla", "LBNHC", 54_728),
        # Rows of BLHNC padded to 32 tokens.
        ("fp8", "BLHNC", Fraction(3_115_008, 64)),
        ("nvfp4_ds_mla", "BLHNC", 30_712),
    ],
)
def test_a_token_costs_what_the_published_figures_say(
    model: Path, dtype: str, layout: str, bytes_per_token: Fraction | int
) -> None:
    data = _data(model, "--pool-gib", POOL, "--dtype", dtype, "--layout", layout)

    assert data["bytes_per_token"] == bytes_per_token
    # No arithmetic of floats is exact here, so the tokens are: whole blocks of 64 in the pool.
    assert data["tokens"] == int(float(POOL) * GIB) // (bytes_per_token * 64) * 64


def test_the_published_gain_of_nvfp4_is_that_of_the_row_minus_a_workspace(model: Path) -> None:
    """Published are 1.09 million tokens in fp8 and 1.63 million in NVFP4, half as many again; a row is 1.58."""
    gathered = _data(model, "--pool-gib", POOL, "--workspace", "gather-fp8")

    fp8 = gathered["dtypes"]["fp8"]["tokens"]
    assert round(fp8 / 1e6, 2) == 1.09
    assert gathered["workspace_bytes"] == 5 * 1_048_576 * 576
    assert round(gathered["tokens"] / 1e6, 2) == 1.63
    assert round(gathered["tokens"] / fp8, 3) == 1.495
    # With a twentieth of the workspace the same GPU holds 5 % more.
    bounded = _data(model, "--pool-gib", POOL, "--workspace", "flashinfer_nvfp4")
    assert bounded["workspace_bytes"] * 20 == gathered["workspace_bytes"]
    assert round(bounded["tokens"] / 1e6, 2) == 1.72
    assert bounded["tokens"] / gathered["tokens"] > 1.05


def test_the_pool_is_what_weights_and_runtime_leave(model: Path) -> None:
    data = _data(model, "--hbm-gib", "180", "--weights-gib", "400", "--tp", "4", "--runtime-gib", "5.6")

    assert data["pool_bytes"] == pytest.approx((180 * 0.92 - 100 - 5.6) * GIB, abs=2)
    assert data["indexer_share"] == pytest.approx(22 * 132 / 30_712)
    assert data["blocks"] * 64 == data["tokens"]


def test_workspaces_are_those_of_the_named_backends() -> None:
    # The source's own example: max_model_len=163840 and the factor 5 give about 900 MB.
    assert workspace_bytes("gather-bf16", 163_840) == 5 * 163_840 * 576 * 2 == 943_718_400
    assert workspace_bytes("gather-bf16", 1 << 20) == 2 * (1 << 20) * 576 * 2
    assert workspace_bytes("gather-fp8", 1_001) == 5_056 * 576  # 5,005 rows, rounded up to 64
    assert {workspace_bytes("none", n) for n in (1, 1 << 20)} == {0}
    with pytest.raises(PlanError, match="workspace='gather' is not known; allowed are none, gather-bf16"):
        workspace_bytes("gather", 1)
    assert {workspace_bytes("flashinfer_nvfp4", n) for n in (1, 1 << 20)} == {144 << 20}
    assert len(WORKSPACES) == 4


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "the memory for KV is not known. Give --hbm-gib and --weights-gib, or --pool-gib."),
        (["--hbm-gib", "180"], "the memory for KV is not known"),
        (["--pool-gib", "10", "--hbm-gib", "180"], "Give it alone, or those two"),
        (["--pool-gib", "-1"], "--pool-gib -1.0: it must be a number of GiB, 0 or more"),
        (["--pool-gib", "nan"], "--pool-gib nan: it must be a number of GiB"),
        (["--pool-gib", "inf"], "--pool-gib inf: it must be a number of GiB, 0 or more and below 1,048,576"),
        (["--pool-gib", "1048576"], "0 or more and below 1,048,576"),
        (["--pool-gib", "0"], "0.00 GiB are left for the KV cache, but two blocks need"),
        (["--pool-gib", "2", "--workspace", "gather-fp8"], "are left for the KV cache"),
        (["--pool-gib", "10", "--workspace", "some"], "--workspace 'some' is not known"),
        (["--pool-gib", "10", "--workspace", "-1"], "--workspace -1.0: it must be a number of GiB"),
        (["--pool-gib", "10", "--layout", "NHD"], "--layout 'NHD' is not known; allowed are BLHNC and LBNHC"),
        (
            ["--pool-gib", "10", "--block-size", "128"],
            "--block-size 128: the sparse indexer's kernels read pages of 64",
        ),
        (["--pool-gib", "10", "--layout", "LBNHC", "--block-size", "96"], "Allowed are 64 with BLHNC"),
        (["--pool-gib", "10", "--dtype", "fp4"], "--dtype 'fp4' is not known"),
        (["--pool-gib", "10", "--dtype", "auto"], "--dtype auto: vLLM settles it when it starts"),
        (["--pool-gib", "10", "--vllm", "0.30"], "--vllm '0.30' cannot be planned; it must be one of 0.31, 0.32, 0.33"),
        (["--pool-gib", "10", "--vllm", ""], "--vllm '' cannot be planned"),
        (["--pool-gib", "10", "--mtp", "500"], "--mtp 500: it counts the prediction layers that are served"),
        (["--hbm-gib", "180", "--weights-gib", "400"], "leaves -"),
        (["--hbm-gib", "180", "--weights-gib", "4", "--utilization", "92"], "--utilization 92.0"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(model: Path, options: list[str], why: str) -> None:
    result = _plan(model, *options)

    assert result.exit_code == 2
    assert why in result.stderr


def test_the_table_compares_the_cache_dtypes(model: Path) -> None:
    result = _plan(model, "--pool-gib", POOL, "--workspace", "gather-fp8")

    assert result.exit_code == 0
    for text in ("bf16", "fp8_ds_mla", "nvfp4_ds_mla - 2.81 GiB", "30,712", "1.495", "nvfp4_ds_mla, 2.81 GiB aside: 1"):
        assert text in result.stdout


@pytest.mark.parametrize(("pool", "workspace"), [("49.41", "gather-bf16"), ("49.41", "gather-fp8"), ("1500", "999")])
def test_every_row_of_the_table_is_one_line_of_80_columns(model: Path, pool: str, workspace: str) -> None:
    out = _plan(model, "--pool-gib", pool, "--workspace", workspace).stdout

    lines = [line.rstrip() for line in out.splitlines() if line.strip()]
    assert len(lines) == 1 + 2 + 5 + 1  # title, heading, dtypes, tokens
    assert max(map(len, lines)) <= 80


def test_vllms_own_names_are_known(model: Path) -> None:
    pool = ("--pool-gib", POOL)

    by_theirs = _data(model, *pool, "--dtype", "fp8_e4m3", "--vllm", "0.31.0")
    assert by_theirs == _data(model, *pool, "--dtype", "fp8", "--vllm", "0.31")
    assert by_theirs["bytes_per_token"] != _data(model, *pool, "--dtype", "fp8")["bytes_per_token"]


def test_a_model_without_packed_rows_is_compared_with_what_it_can_have(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(Shape(layers=78, mtp=True).config() | {"kv_lora_rank": 1024}), encoding="utf-8")

    assert list(_data(path, "--pool-gib", POOL, "--dtype", "fp8")["dtypes"]) == ["bf16", "fp8"]


def test_the_page_shows_what_is_printed(model: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "nvfp4.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ glm53 plan kv --model config\.json (.*)\n((?:.*\n)*?)```", page, re.MULTILINE)

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    assert len(commands) == 4
    for options, shown in commands:
        printed = lines(_plan(model, *options.split()).stdout)
        assert lines(shown) == printed[-len(lines(shown)) :]


def test_blocks_of_more_tokens_hold_the_same_bytes_a_token(model: Path) -> None:
    pool = ("--pool-gib", POOL, "--layout", "LBNHC")
    one, four = (_data(model, *pool, "--block-size", size) for size in ("64", "256"))

    assert one["bytes_per_token"] == four["bytes_per_token"] == 30_712
    assert (four["block_bytes"], four["block_padding"]) == (256 * 30_712, 0)
    assert four["tokens"] == four["blocks"] * 256 == one["tokens"] // 256 * 256


def test_the_help_names_every_option_and_says_what_is_counted() -> None:
    result = runner.invoke(app, ["plan", "kv", "--help"], env={"COLUMNS": "160"})

    assert "glm53 plan kv --model config.json --hbm-gib 180 --weights-gib 400 --tp 4" in result.stdout
    assert "a group of GPUs holds what one" in result.stdout
    options = "hbm-gib weights-gib tp dtype utilization runtime-gib pool-gib workspace max-model-len layout block-size"
    for option in [*options.split(), "vllm", "mtp", "json"]:
        assert f"--{option} " in result.stdout


@pytest.mark.parametrize("option", ["--tp", "--max-model-len"])
def test_a_number_beyond_all_machines_is_wrong_usage(model: Path, option: str) -> None:
    result = _plan(model, "--hbm-gib", "180", "--weights-gib", "4", option, "9" * 400)

    assert (result.exit_code, option in result.stderr) == (2, True)
