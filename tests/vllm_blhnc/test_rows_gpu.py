"""Block rows on a GPU: the faults that upstream saw there, looked for with `layout_run`, which CPU tests prove.

    python -m pytest tests/vllm_blhnc/test_rows_gpu.py -rs

GLM53_GPU_MODEL: folder of a GLM-5.3 or DeepSeek-V3.2 model with its draft layer; unset, a small one is made.
GLM53_GPU_ENGINE: further arguments of `vllm.LLM` as a JSON object, as ``{"tensor_parallel_size": 8}``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import layout_run
import pytest

SCRIPT = Path(layout_run.__file__)
#: Nats between the best two tokens below which kernels that sum in another order may choose either.
TIE = 0.1
#: Longer than a sparse selection of 2,048 tokens, so that the indexer decides what is attended to.
LENGTHS = {"first": 6000, "appended": 1000, "tokens": 64}

Run = dict[str, Any]


def _missing() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "needs an NVIDIA GPU: nvidia-smi is not there"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if listed.returncode or "GPU" not in listed.stdout:
        return f"needs an NVIDIA GPU: nvidia-smi -L says {(listed.stdout + listed.stderr).strip()!r}"
    return None


pytestmark = pytest.mark.timeout(7200)
WITH_AND_WITHOUT_DRAFTS = pytest.mark.parametrize("runs", [0, 1], ids=["no-drafts", "mtp"], indirect=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := _missing():
        pytest.skip(why)
    if given := os.environ.get("GLM53_GPU_MODEL"):
        return Path(given)
    path = tmp_path_factory.mktemp("model") / "glm"
    # Head counts, selection and dtype that GPU kernels are made for.
    options = "--mtp --dtype bfloat16 --heads 64 --index-topk 2048 --context 16384"
    command = [sys.executable, "-m", "glm53.model", "make", str(path), *options.split()]
    subprocess.run(command, check=True, capture_output=True)
    return path


def _run(model: Path, layout: str, mtp: int, out: Path) -> Run | str:
    """What the engine answered, or the end of its log if it failed."""
    engine = {"max_model_len": 16384} | json.loads(os.environ.get("GLM53_GPU_ENGINE", "{}"))
    command = [sys.executable, str(SCRIPT), "--model", str(model), "--layout", layout, "--mtp", str(mtp)]
    for name, value in LENGTHS.items():
        command += [f"--{name}", str(value)]
    command += ["--engine", json.dumps(engine), "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        return "\n".join((result.stdout + result.stderr).splitlines()[-20:])
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The default layout and block rows, with the parameter's number of draft tokens a step."""
    folder = tmp_path_factory.mktemp("runs")
    stock = _run(model, "LBNHC", request.param, folder / "stock.json")
    if isinstance(stock, str):
        pytest.skip(f"{model} does not run here in the default layout, so there is nothing to compare with:\n{stock}")
    rows = _run(model, "BLHNC", request.param, folder / "rows.json")
    if isinstance(rows, str):
        pytest.fail(f"{model} runs in the default layout but not with block rows:\n{rows}")
    return stock, rows


@WITH_AND_WITHOUT_DRAFTS
def test_rows_give_the_tokens_of_the_default_layout(runs: tuple[Run, Run]) -> None:
    """First turns and follow-ups on cached blocks, of which upstream saw 0 of 9 right."""
    stock, rows = runs

    assert layout_run.differences(stock, rows, tie=TIE) == []
    assert all(answer["cached"] > 0 for turn in rows["turns"][1:] for answer in turn)


@WITH_AND_WITHOUT_DRAFTS
def test_follow_ups_on_cached_rows_answer_as_computed_anew(runs: tuple[Run, Run]) -> None:
    for run in runs:
        last = {"layout": f"{run['layout']} on cached blocks", "turns": [_uncounted(run["turns"][-1])]}
        anew = {"layout": f"{run['layout']} anew", "turns": [_uncounted(run["anew"])]}

        assert layout_run.differences(last, anew, tie=TIE) == []


def _uncounted(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer | {"cached": 0} for answer in answers]


@pytest.mark.parametrize("runs", [1], ids=["mtp"], indirect=True)
def test_as_many_drafts_are_accepted_as_in_the_default_layout(runs: tuple[Run, Run]) -> None:
    """Upstream saw 3.3 % and 0.56 %."""
    stock, rows = runs

    assert layout_run.acceptance_differs(stock, rows) is None
