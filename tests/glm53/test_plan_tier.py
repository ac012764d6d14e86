"""``glm53 plan tier``: its data, its table, its refusals, on a machine with nothing of upstream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glm53.cli import app
from glm53.model.shape import Shape

runner = CliRunner(env={"COLUMNS": "80"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """GLM-5.3's 79 MLA and 22 indexer caches."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(Shape(layers=78, mtp=True).config()), encoding="utf-8")
    return path


def _plan(model: Path, *options: str) -> Result:
    return runner.invoke(app, ["plan", "tier", "--model", str(model), *options])


def _data(model: Path, *options: str) -> dict[str, Any]:
    result = _plan(model, *options, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_published_five_times_follow_from_the_defaults(model: Path) -> None:
    data = _data(model, "--tier-gib", "1024")

    tep, dep = data["shapes"]["TEP"], data["shapes"]["DEP"]
    assert (data["block_bytes"], data["dtype"]) == (3_115_008, "fp8")
    assert (tep["tokens"], dep["tokens"], dep["tokens_a_rank"]) == (2_184_512, 10_597_376, 1_324_672)
    assert round(data["ratio"], 2) == 4.85
    assert (tep["sessions_kept"], dep["sessions_kept"]) == (15, 75)
    assert data["tier_tokens"] == 1024 * (1 << 30) // 3_115_008 * 64
    # 66 agents need more than 15 prompts and less than 75.
    assert tep["without_tier"]["hit_rate"] < 0.25
    assert dep["without_tier"]["hit_rate"] > 0.8
    for shape in (tep, dep):
        both = shape["with_tier"]
        assert both["gpu"] + both["tier"] + both["recomputed"] == both["prompt_tokens"] == 66 * 8 * 161_000
        assert both["hit_rate"] == both["best_hit_rate"] == (7 * 140_000 + 21 * 6_000) / (8 * 161_000)


def test_smaller_rows_keep_more(model: Path) -> None:
    fp8, nvfp4 = _data(model), _data(model, "--dtype", "nvfp4_ds_mla")

    for shape in ("TEP", "DEP"):
        tokens = nvfp4["shapes"][shape]["tokens"] / fp8["shapes"][shape]["tokens"]
        assert tokens == pytest.approx(fp8["block_bytes"] / nvfp4["block_bytes"], rel=1e-3)


def test_the_table_shows_shapes_shares_and_terms(model: Path) -> None:
    shown = _plan(model, "--tier-gib", "1024").stdout

    assert "TEP8" in shown
    assert "10,597,376" in shown
    assert "DEP keeps 4.85 times the tokens of TEP; the tier 22,590,208 tokens" in shown
    assert "at best 85.9% are hits" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hbm-gib", "40"], "bytes left for KV"),
        (["--tier-gib", "-1"], "--tier-gib -1.0"),
        (["--utilization", "92"], "--utilization 92"),
        (["--turns", "0"], "turns=0"),
        (["--sessions", "200000"], "1,000,000 turns"),
        (["--dtype", "auto"], "--dtype auto"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(model: Path, options: list[str], message: str) -> None:
    result = _plan(model, *options)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
