"""``glm53 plan blhnc``: its data, its tables, its refusals, on a machine with nothing of upstream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glm53.cli import app
from glm53.model.shape import Shape
from vllm_blhnc.plan import Caches, plan_transfer

runner = CliRunner(env={"COLUMNS": "80"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """GLM-5.3's caches in a config.json as `glm53 model make` writes it."""
    path = tmp_path / "glm" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(Shape(layers=78, mtp=True).config()), encoding="utf-8")
    return path


def _plan(model: Path, *options: str) -> Result:
    return runner.invoke(app, ["plan", "blhnc", "--model", str(model), "--tokens", "200000", *options])


def _data(model: Path, *options: str) -> dict[str, Any]:
    result = _plan(model, *options, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_data_has_what_others_rely_on(model: Path) -> None:
    data = _data(model, "--block-size", "64", "--dtype", "fp8", "--run-length", "10")

    assert (data["caches"], data["mla_caches"], data["indexer_caches"], data["mtp_layers"]) == (101, 79, 22, 1)
    assert (data["row_bytes"], data["row_stride"], data["blocks"], data["runs"]) == (3_098_112, 3_115_008, 3_125, 313)
    layouts = data["layouts"]
    assert (layouts["LBNHC"]["regions"], layouts["LBNHC"]["descriptors"]) == (101, 31_613)
    assert (layouts["BLHNC"]["regions"], layouts["BLHNC"]["descriptors"]) == (1, 313)
    assert layouts["BLHNC"]["bytes"] == 3_125 * 3_115_008
    assert list(data["releases"]) == ["0.31", "0.32", "0.33"]
    assert data["releases"]["0.33"].items() <= data.items()
    assert data["releases"]["0.31"]["row_stride"] == 3_098_304
    assert data["releases"]["0.32"]["layouts"]["BLHNC_stock"]["descriptors"] == 315_625


def test_the_data_is_that_of_the_plugins_plan(model: Path) -> None:
    options: dict[str, Any] = {
        "tokens": 200_000,
        "run_length": None,
        "release": "0.32",
        "dtype": "bf16",
        "backend": "FLASHMLA_SPARSE",
    }
    plan = plan_transfer(Caches.of(json.loads(model.read_text()), 0), **options)

    data = _data(
        model,
        *("--mtp", "0", "--run-length", "all", "--vllm", "0.32.0"),
        *("--dtype", "bfloat16", "--attention-backend", "FLASHMLA_SPARSE"),
    )

    assert (data["caches"], data["run_length"], data["runs"], data["vllm"]) == (99, "all", 1, "0.32")
    assert (data["row_bytes"], data["row_stride"]) == (plan.row.payload, plan.row.nbytes)
    assert (data["alignment_bytes"], data["alignment_tokens"]) == (plan.row.alignment, 1)
    for key, layout in (("LBNHC", plan.lbnhc), ("BLHNC", plan.blhnc), ("BLHNC_stock", plan.blhnc_stock)):
        assert data["layouts"][key] == {
            "registered_by": layout.who,
            "regions": layout.regions,
            "mergeable": layout.dense,
            "descriptors": layout.descriptors,
            "descriptors_raw": layout.descriptors_raw,
            "descriptors_contiguous": layout.descriptors_contiguous,
            "bytes": layout.nbytes,
            "overhead_percent": 100 * layout.overhead,
        }


def test_a_larger_alignment_comes_with_its_cost(model: Path) -> None:
    data = _data(model, "--row-alignment", "64")

    assert (data["row_stride"], data["kernel_page_tokens"]) == (3_133_440, 64)
    cost = data["row_alignment"]
    assert (cost["tokens"], cost["row_stride_without"], cost["extra_bytes"]) == (64, 3_115_008, 18_432)
    assert cost["extra_percent"] == pytest.approx(100 * 18_432 / 3_115_008)
    assert data["releases"]["0.31"]["row_alignment"]["extra_bytes"] == 3_133_440 - 3_098_304
    assert _data(model)["row_alignment"] is None
    assert "18,432 bytes (0.592 %) more memory and traffic a block than vLLM's own 3,115,008" in (
        " ".join(_plan(model, "--row-alignment", "64").stdout.split())
    )


def test_the_tables_say_which_side_needs_the_plugin(model: Path) -> None:
    result = _plan(model)

    assert result.exit_code == 0
    assert "101 caches a block: 79 MLA and 22 indexer, 1 MTP layer included" in result.stdout
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "0.31 3,098,112 192 3,098,304 1 token -" in lines
    assert "0.33 3,098,112 16,896 3,115,008 32 tokens 32 tokens" in lines
    assert "0.32 LBNHC stock 101 31,613 315,625 101 9.68 0.000 %" in lines
    assert "0.32 BLHNC stock 101 315,625 315,625 315,625 9.68 0.000 %" in lines
    assert "0.32 BLHNC plugin 1 313 3,125 1 9.73 0.545 %" in lines
    assert "0.33 BLHNC stock 1 313 3,125 1 9.73 0.545 %" in lines
    assert lines[-2].startswith("On 0.31 and 0.32 rows need the plugin")
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


def test_the_page_shows_what_is_printed(model: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "blhnc.md").read_text(encoding="utf-8")
    shown = page.partition("$ glm53 plan blhnc --model config.json --tokens 200000 --run-length 10\n")[2]

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    assert lines(shown.partition("```")[0]) == lines(_plan(model, "--run-length", "10").stdout)


def test_one_release_and_one_run_leave_out_the_rest(model: Path) -> None:
    result = _plan(model, "--vllm", "0.33", "--run-length", "all", "--no-mtp", "--dtype", "bf16")

    assert "99 caches a block: 78 MLA and 21 indexer, no MTP layer" in result.stdout
    assert "0.31" not in result.stdout
    assert "runs of" not in result.stdout
    assert "plugin:" not in result.stdout
    assert "FLASHINFER_MLA_SPARSE for up to 16 attention heads" in result.stdout
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


@pytest.mark.parametrize("version", ["0.33", "0.33.0", "0.33.2", "0.33.0rc1", "0.33.0+cpu"])
def test_a_release_may_be_named_as_vllm_names_itself(model: Path, version: str) -> None:
    assert list(_data(model, "--vllm", version)["releases"]) == ["0.33"]


@pytest.mark.parametrize(("vllms", "ours"), [("bfloat16", "bf16"), ("fp8_e4m3", "fp8"), ("fp8_ds_mla", "fp8_ds_mla")])
def test_vllms_names_of_cache_dtypes_are_known(model: Path, vllms: str, ours: str) -> None:
    assert _data(model, "--dtype", vllms) == _data(model, "--dtype", ours)
    assert _data(model, "--dtype", vllms)["dtype"] == ours


def test_the_largest_prompt_is_shown_to_the_last_digit(model: Path) -> None:
    out = _plan(model, "--tokens", "1000000000").stdout

    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out


def test_a_folder_is_as_good_as_its_config(model: Path) -> None:
    by_folder, by_file = _data(model.parent), _data(model)

    assert by_folder.pop("model") != by_file.pop("model")
    assert by_folder == by_file


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (["--run-length", "0"], "--run-length '0': a run has whole blocks"),
        (["--run-length", "many"], "--run-length 'many': a run has whole blocks"),
        (["--run-length", "9" * 5000], "--run-length '99"),
        (["--vllm", "0.30"], "--vllm '0.30' cannot be planned; it must be one of 0.31, 0.32, 0.33"),
        (["--vllm", "0.34.0"], "--vllm '0.34.0'"),
        (["--vllm", "9" * 5000], "--vllm '99"),
        (["--vllm", ""], "--vllm '' cannot be planned"),
        (["--dtype", "nvfp4"], "--dtype 'nvfp4' is not known"),
        (["--dtype", "auto"], "--dtype auto: vLLM settles it when it starts"),
        (["--block-size", "128"], "--block-size 128"),
        (["--row-alignment", "48"], "--row-alignment 48"),
        (["--attention-backend", "FLASHMLA_SPARSE"], "--dtype 'fp8' is not what FLASHMLA_SPARSE caches"),
        (["--attention-backend", "TRITON"], "--attention-backend 'TRITON' cannot be planned"),
        (["--attention-backend", ""], "--attention-backend '' cannot be planned"),
        (["--mtp", "-1"], "--mtp -1"),
        (["--mtp", "500"], "--mtp 500: it counts the prediction layers that are served, and the model has num_nextn"),
        (["--mtp", "1", "--no-mtp"], "--no-mtp and --mtp 1 contradict each other"),
        (["--tokens", "0"], "--tokens 0"),
        (["--tokens", "9" * 500], "--tokens 999"),
    ],
)
def test_a_plan_that_cannot_be_is_wrong_usage(model: Path, options: list[str], seen: str) -> None:
    result = _plan(model, *options, "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"glm53: {seen}" in result.stderr


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (None, "No such file or directory. It must be a model's config.json"),
        ("{", "is not JSON"),
        ("[]", "holds a list, but a config.json is an object"),
        ("\xff", "is not JSON"),
        pytest.param("[" * 200_000, "is not JSON that can be read: maximum recursion depth", id="deep"),
        pytest.param('{"kv_lora_rank": ' + "9" * 5000 + "}", "is not JSON that can be read: Exceeds", id="digits"),
        ('{"kv_lora_rank": 512, "index_topk": 1, "num_hidden_layers": 10000000}', "num_hidden_layers=10000000"),
        (
            '{"model_type": "kimi_k25", "text_config": {"index_topk": 1}}',
            "kv_lora_rank is missing, so this model (kimi",
        ),
        ("{}", "kv_lora_rank is missing, so this model (without a model_type) has no MLA"),
        ('{"model_type": "llama"}', "kv_lora_rank is missing, so this model (llama) has no MLA"),
    ],
)
def test_a_model_that_cannot_be_planned_is_refused_by_name(tmp_path: Path, content: str | None, seen: str) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    result = _plan(file)

    assert result.exit_code == 2
    assert seen in result.stderr


def test_a_path_that_no_file_can_have_is_refused_by_name() -> None:
    result = _plan(Path("a" * 400))

    assert (result.exit_code, "File name too long" in result.stderr) == (2, True)


def test_tokens_that_are_no_number_for_python_are_wrong_usage(model: Path) -> None:
    result = _plan(model, "--tokens", "9" * 5000)

    assert (result.exit_code, "--tokens" in result.stderr) == (2, True)


def test_a_multimodal_config_is_planned_by_its_text_config(model: Path, tmp_path: Path) -> None:
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"model_type": "kimi_k25", "text_config": json.loads(model.read_text())}))

    assert _data(nested) == _data(model) | {"model": str(nested)}


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", [["blhnc", "--tokens", "64"], ["kv", "--pool-gib", "4"]])
def test_an_output_that_cannot_be_written_is_one_line(model: Path, command: list[str], options: list[str]) -> None:
    arguments = [sys.executable, "-m", "glm53", "plan", *command, "--model", str(model), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    seen = "glm53: standard output cannot be written: No space left on device. Send it elsewhere.\n"
    assert (done.returncode, done.stderr) == (1, seen)


def test_a_reader_that_has_seen_enough_is_no_error_to_tell_about(model: Path) -> None:
    shell = f"{sys.executable} -m glm53 plan blhnc --model {model} --tokens 64 --json | true"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)

    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "blhnc"]])
def test_what_is_missing_is_asked_for(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_help_names_every_option_and_an_example() -> None:
    result = runner.invoke(app, ["plan", "blhnc", "--help"], env={"COLUMNS": "160"})

    assert result.exit_code == 0
    assert "glm53 plan blhnc --model config.json --tokens 200000 --run-length 10" in result.stdout
    for option in ("--model", "--tokens", "--run-length", "--block-size", "--dtype", "--attention-backend", "--vllm"):
        assert option in result.stdout
    for option in ("--mtp", "--no-mtp", "--row-alignment", "--json"):
        assert option in result.stdout


def test_planning_loads_nothing_of_upstream(model: Path) -> None:
    """The plan is for a laptop: importing any of these would need them installed."""
    code = (
        "import sys\n"
        "for name in ('vllm', 'torch', 'nixl', 'dynamo', 'transformers', 'numpy', 'mooncake'):\n"
        "    sys.modules[name] = None\n"
        "from glm53.__main__ import main\n"
        f"sys.argv = ['glm53', 'plan', 'blhnc', '--model', {str(model)!r}, '--tokens', '200000', '--json']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["layouts"]["BLHNC"]["descriptors"] == 313
