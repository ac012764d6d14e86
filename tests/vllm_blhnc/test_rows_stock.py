"""The GPU checks of `test_rows_gpu.py`, run on the CPU by the same program, and shown to notice what they look for."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import layout_run
import pytest
from vllm_process import ENVIRONMENT

SCRIPT = Path(layout_run.__file__)
ENGINE = {
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
}

Run = dict[str, Any]

#: Three engines one after the other: more than the usual limit where others want the cores, too.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The default layout and block rows, both with a draft layer, and the default layout without."""
    if find_spec("vllm") is None:
        pytest.skip("needs vllm: run make test, which installs it, or use .venv/bin/python -m pytest")
    folder = tmp_path_factory.mktemp("layouts")
    make = [sys.executable, "-m", "glm53.model", "make", str(folder / "glm"), "--mtp"]
    subprocess.run(make, check=True, capture_output=True)
    cases = {"LBNHC": ("LBNHC", "1"), "BLHNC": ("BLHNC", "1"), "without drafts": ("LBNHC", "0")}
    found = {}
    for name, (layout, mtp) in cases.items():
        out = folder / f"{name}.json"
        command = [sys.executable, str(SCRIPT), "--model", str(folder / "glm"), "--layout", layout, "--mtp", mtp]
        command += ["--first", "300", "--tokens", "16", "--engine", json.dumps(ENGINE), "--out", str(out)]
        result = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=500)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        found[name] = json.loads(out.read_text())
    return found


def test_layouts_answer_alike_in_every_follow_up(runs: dict[str, Run]) -> None:
    assert layout_run.differences(runs["LBNHC"], runs["BLHNC"], tie=0) == []
    for turn in runs["BLHNC"]["turns"][1:]:
        # The four full blocks of 300 tokens, less the one that vLLM computes anew for a draft layer.
        assert all(answer["cached"] >= 192 for answer in turn)


def test_follow_ups_on_cached_blocks_answer_as_computed_anew(runs: dict[str, Run]) -> None:
    for run in runs.values():
        assert [answer["cached"] for answer in run["anew"]] == [0, 0, 0]
        last = [answer["tokens"] for answer in run["turns"][-1]]
        assert [answer["tokens"] for answer in run["anew"]] == last


def test_drafts_are_accepted_alike_and_change_no_token(runs: dict[str, Run]) -> None:
    with_drafts, rows = runs["LBNHC"], runs["BLHNC"]

    assert layout_run.acceptance_differs(with_drafts, rows) is None
    assert (rows["drafted"], rows["accepted"]) == (with_drafts["drafted"], with_drafts["accepted"])
    assert 0 < rows["accepted"] < rows["drafted"]
    tokens = [
        [[answer["tokens"] for answer in turn] for turn in run["turns"]] for run in (runs["without drafts"], rows)
    ]
    assert tokens[0] == tokens[1]


def test_another_token_is_noticed_unless_it_is_a_tie(runs: dict[str, Run]) -> None:
    wrong = copy.deepcopy(runs["BLHNC"])
    wrong["turns"][2][1]["tokens"][5] += 1
    margin = runs["LBNHC"]["turns"][2][1]["margins"][5]

    (found,) = layout_run.differences(runs["LBNHC"], wrong, tie=margin / 2)
    assert found.startswith("conversation 1, turn 2, token 5: ")
    assert layout_run.differences(runs["LBNHC"], wrong, tie=margin * 2) == []


def test_a_missing_prefix_hit_and_a_short_answer_are_noticed(runs: dict[str, Run]) -> None:
    wrong = copy.deepcopy(runs["BLHNC"])
    wrong["turns"][3][0]["cached"] = 0
    wrong["turns"][1][2]["tokens"].pop()

    cached, short = layout_run.differences(runs["LBNHC"], wrong, tie=0)

    assert "turn 3" in cached
    assert "and 0 in BLHNC" in cached
    assert short.startswith("conversation 2, turn 1, token 15: ")


def _drafts(accepted: int, drafted: int = 2000) -> Run:
    return {"layout": "L", "accepted": accepted, "drafted": drafted}


@pytest.mark.parametrize(
    ("accepted", "differs"),
    [
        pytest.param(66, True, id="upstream-3.3-percent"),
        pytest.param(11, True, id="upstream-0.56-percent"),
        pytest.param(1300, True, id="65-of-70-percent"),
        pytest.param(1380, False, id="69-of-70-percent"),
        pytest.param(1400, False, id="equal"),
    ],
)
def test_a_fall_of_acceptance_is_told_from_chance(accepted: int, differs: bool) -> None:
    """Two samples of 2000 with 70 %: four standard deviations are 5.8 points, with 67.5 % pooled 5.9."""
    assert (layout_run.acceptance_differs(_drafts(1400), _drafts(accepted), sigmas=3) is not None) is differs


def test_no_drafts_at_all_are_noticed() -> None:
    why = layout_run.acceptance_differs(_drafts(1400), _drafts(0, drafted=0))

    assert why is not None
    assert why.startswith("no tokens were drafted")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--layout", "NHD"], "invalid choice: 'NHD'"),
        (["--layout", "BLHNC", "--tokens", "1"], "--tokens 1 is too small; at least 2"),
        (["--layout", "BLHNC", "--engine", "[]"], "[] is not a JSON object"),
        (["--layout", "BLHNC"], "has no config.json"),
    ],
)
def test_wrong_arguments_are_refused_before_an_engine_starts(
    tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        layout_run.main(["--model", str(tmp_path), "--out", str(tmp_path / "out"), *arguments])

    assert ended.value.code == 2
    assert why in capsys.readouterr().err
