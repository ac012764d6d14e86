"""``glm53 plan traffic``: its arithmetic against figures worked out by hand, its sources, its plot, its refusals."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glm53.cli import app

runner = CliRunner(env={"COLUMNS": "120"})
RECIPES = Path(__file__).parents[2] / "recipes"

#: A profile with round numbers: a turn takes 2 + 1000 x 0.01 + 18 = 30 s.
ROUND = [
    *("--sessions", "60", "--prompt", "150000", "--append", "6000", "--cold", "0.1", "--output", "1000"),
    *("--tool-seconds", "18", "--ttft-ms", "2000", "--itl-ms", "10", "--load", "0.5"),
]
MEASURED = ["--prefill-tokens-per-s", "40000", "--decode-sessions", "25"]


def _plan(*options: str, recipe: str = "glm53-gb200-nvl72.yaml") -> Result:
    return runner.invoke(app, ["plan", "traffic", str(RECIPES / recipe), *options])


def _data(*options: str) -> dict[str, Any]:
    result = _plan(*options, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _values(data: dict[str, Any]) -> dict[str, float]:
    return {step["name"]: step["value"] for step in data["steps"]}


def test_each_step_is_what_a_hand_works_out() -> None:
    data = _data(*ROUND, *MEASURED)
    values = _values(data)

    assert values["an agent's turn"] == pytest.approx(30)
    assert values["turns"] == pytest.approx(2)
    assert values["new tokens of a turn"] == pytest.approx(0.9 * 6_000 + 0.1 * 150_000) == 20_400
    assert values["prefill needed"] == pytest.approx(40_800)
    assert values["prefill groups"] == 3  # 40,800 of 20,000 that half of a group's speed are
    assert values["speed of a rank"] == 5_000
    assert values["TTFT of a warm turn"] == pytest.approx((4096 / 2 + 6_000) / 5_000 * 1000 + 10)
    assert values["answers under way"] == pytest.approx(2 * 10)
    assert values["their KV"] == pytest.approx(20 * 151_000)
    # 1,273,984 tokens a group: 0.87 of 186 GB less a quarter of 465 GB and 6 GiB, in blocks of 64 tokens.
    assert values["a decode group's KV"] == (161_820_000_000 - 116_250_000_000 - 6 * 2**30) // 1_965_568 * 64
    assert (values["decode groups for the KV"], values["decode groups for the speed"]) == (3, 3)
    assert (values["decode groups"], values["ratio"], values["GPUs"]) == (3, 1, 3 * 8 + 3 * 4)
    assert (data["prefill_groups"], data["decode_groups"], data["ratio"]) == (3, 3, 1)


def test_the_shown_arithmetic_gives_the_shown_value() -> None:
    """Every line that is one expression is computed again from its text."""
    data = _data(*ROUND, *MEASURED)
    checked = 0
    for step in data["steps"]:
        text = re.sub(r"([\d.]+) ms", r"(\1 / 1000)", step["arithmetic"].replace(",", "").replace(" x ", " * "))
        text = re.sub(r" (s|ranks)$|(?<=\d) s\b", "", text)
        if re.fullmatch(r"[\d\s.()*/+-]+", text):
            value = eval(text)
            assert step["value"] in (pytest.approx(value, rel=1e-3), pytest.approx(1000 * value, rel=1e-3)), step
            checked += 1

    assert checked >= 10


def test_the_published_load_gives_the_published_groups() -> None:
    data = _data()

    assert (data["profile"]["sessions"], data["prefill_groups"], data["decode_groups"]) == (66, 1, 4)
    assert "not published" in data["speeds"]["prefill_source"]
    assert data["speeds"]["decode_source"].startswith("published: 66 agents at 101 tokens/s")
    assert data["speeds"]["decode_sessions"] == 16.5


def test_the_implied_speed_is_the_least_that_serves_the_published_agents() -> None:
    implied = _data(*ROUND, "--decode-sessions", "25")["speeds"]["prefill_tokens_per_s"]

    assert implied == pytest.approx(66 / 30 * 20_400 / 0.5)
    for speed, groups in ((implied * 1.001, 1), (implied * 0.999, 2)):
        assert (
            _data(*ROUND, *MEASURED[2:], "--sessions", "66", "--prefill-tokens-per-s", str(speed))["prefill_groups"]
            == groups
        )


def test_a_bound_of_the_speed_does_not_tell_that_the_first_token_is_late() -> None:
    assert _data(*ROUND, *MEASURED)["ttft_met"] is True
    assert _data(*ROUND, *MEASURED, "--ttft-ms", "1000")["ttft_met"] is False
    assert _data("--ttft-ms", "100")["ttft_met"] is None
    assert "Measure the speed of a prefill group" in " ".join(_plan("--ttft-ms", "100").stdout.split())


def test_descriptors_and_bytes_are_those_of_the_transfer_plan() -> None:
    moved = _data(*ROUND, *MEASURED)["transfer"]

    blocks = -(-150_000 // 64)
    assert moved["blocks"] == blocks == 2344
    assert moved["bytes"] == blocks * 1_965_568
    assert (moved["descriptors"], moved["descriptors_stock_layout"]) == (235, 101 * 235)
    assert moved["bytes_per_s"] == pytest.approx(2 * blocks * 1_965_568)


def test_more_agents_need_more_groups_and_never_fewer() -> None:
    plans = [_data(*ROUND, *MEASURED, "--sessions", str(sessions)) for sessions in (1, 60, 120, 600)]

    assert [plan["prefill_groups"] for plan in plans] == [1, 3, 5, 21]
    assert [plan["decode_groups"] for plan in plans] == [1, 3, 5, 24]


def test_the_plot_is_svg_with_both_roles_and_the_target(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    assert _plan(*ROUND, *MEASURED, "--svg", str(path)).exit_code == 0
    root = ET.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    labels = {text.text for text in root.iter(f"{space}text")}
    lines = [line.attrib["points"].split() for line in root.iter(f"{space}polyline")]

    assert {"groups", "agents", "prefill groups", "decode groups", "TTFT, ms", "target"} <= labels
    assert [len(line) for line in lines] == [24, 24, 7, 7]
    heights = [float(point.split(",")[1]) for point in lines[1]]
    assert heights == sorted(heights, reverse=True)  # more agents never need fewer groups; y grows downwards


def test_the_table_shows_arithmetic_and_sources() -> None:
    result = _plan(*ROUND, *MEASURED)

    assert result.exit_code == 0
    for part in (
        "0.9 x 6,000 + 0.1 x 150,000",
        "given by --prefill-tokens-per-s",
        "3 prefill and 3 decode groups",
        "met.",
    ):
        assert part in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sessions", "0"], "--sessions 0: it must be from 1"),
        (["--cold", "1.5"], "--cold 1.5: it must be from 0 to 1"),
        (["--load", "0"], "--load 0.0: it must be from 0.01 to 1"),
        (["--append", "150001", "--prompt", "150000"], "--append 150001 of --prompt 150000"),
        (["--itl-ms", "5"], "--itl-ms 5: 9.9 ms is the only speed that is published"),
        (["--svg", "/nowhere/plan.svg"], "cannot be written"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(options: list[str], message: str) -> None:
    result = _plan(*options)

    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("recipe", "message"),
    [("glm53-cpu.yaml", "hardware=cpu"), ("none.yaml", "Name an existing YAML file")],
)
def test_recipes_without_gpus_or_file_are_refused(recipe: str, message: str) -> None:
    result = _plan(recipe=recipe)

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("recipe", ["glm53-b200.yaml", "glm53-h200.yaml", "glm53-batch.yaml", "glm53-fine-tuned.yaml"])
def test_every_recipe_for_gpus_can_be_planned(recipe: str) -> None:
    assert _plan(recipe=recipe).exit_code == 0
