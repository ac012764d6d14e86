"""The accuracy command: its measures against closed forms, its run on a real CPU engine, and the page's tables."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = (BENCHMARKS.parent / "docs" / "nvfp4.md").read_text(encoding="utf-8").splitlines()
#: Of an error on the page: other processors draw and sum a little differently.
CLOSE = 0.02


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _cells(label: str) -> list[tuple[float, float]]:
    """Percents and ratios of the one line of the page that begins with this label."""
    [line] = [line for line in PAGE if line.startswith(f"{label}  ")]
    words = line.removeprefix(label).replace("(", " ").replace(")", " ").split()
    return [(float(percent), float(ratio)) for percent, ratio in zip(words[::2], words[1::2], strict=True)]


def _assert_line(label: str, errors: dict[str, float]) -> None:
    found = [(100 * error**0.5, error / errors["rtn"]) for error in errors.values()]
    for told, (percent, ratio) in zip(_cells(label), found, strict=True):
        assert told == (pytest.approx(percent, rel=CLOSE), pytest.approx(ratio, rel=2 * CLOSE, abs=0.001)), label


def _likeliest(logprobs: Any, count: int) -> dict[int, float]:
    return {int(token): logprobs[token].item() for token in logprobs.topk(count).indices}


def test_the_divergence_of_two_tokens_is_the_closed_form() -> None:
    from cache_accuracy.divergence import compare, kl

    p, q = ({1: math.log(x), 2: math.log1p(-x)} for x in (0.9, 0.6))
    exact = 0.9 * math.log(0.9 / 0.6) + 0.1 * math.log(0.1 / 0.4)

    assert kl(p, q, whole=True) == (pytest.approx(exact), 0.0)
    # Of two tokens, one is all the rest.
    assert kl({1: p[1]}, {1: q[1]}, whole=False) == (pytest.approx(exact), pytest.approx(0.1))
    both = compare([p, p], [q, p], whole=True)
    assert (both.kl, both.same_token, both.positions) == (pytest.approx(exact / 2), 1.0, 2)
    with pytest.raises(ValueError, match="shorter|longer"):
        compare([p], [q, q], whole=True)


def test_the_likeliest_tokens_give_a_lower_bound() -> None:
    import torch
    from cache_accuracy.divergence import kl

    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        p, q = (torch.randn(50, generator=generator).double().mul(2).log_softmax(-1) for _ in range(2))
        exact = torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum").item()
        whole, part = (kl(_likeliest(p, count), _likeliest(q, count), whole=count == 50)[0] for count in (50, 12))
        assert whole == pytest.approx(exact)
        assert 0 < part <= exact


def test_layers_span_the_published_sizes_and_attention_is_exact_where_rows_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cache_accuracy import synthetic

    sizes = synthetic.layer_sizes()
    assert (len(sizes), sizes[0], sizes[-1]) == (78, 0.02, pytest.approx(5.2))
    assert sizes == sorted(sizes)
    monkeypatch.setattr(synthetic, "_stored", lambda setting, layer: (layer.latent.double(), layer.rope.double()))
    assert [{*errors.values()} for errors in synthetic.layer_errors("Gaussian", 0, 64, 0)] == [{0.0}, {0.0}]


def test_the_pages_synthetic_errors_are_what_the_command_finds() -> None:
    """Two of the 78 layers, the smallest and the largest; the lines of the rows come before those of attention."""
    from cache_accuracy.report import synthetic_lines
    from cache_accuracy.synthetic import KINDS, layer_errors

    found: dict[str, Any] = {"rows": {}, "attention": {}}
    for kind in KINDS:
        errors = {str(layer): layer_errors(kind, layer, 2048, 0) for layer in (0, 77)}
        found["rows"][kind] = {layer: rows for layer, (rows, _) in errors.items()}
        found["attention"][kind] = {layer: outputs for layer, (_, outputs) in errors.items()}
        for layer in errors:
            rows, outputs = (found[part][kind][layer] for part in ("rows", "attention"))
            assert outputs["fold + search"] < outputs["rtn"]
            assert rows["fold + search"] / rows["rtn"] < (0.83 if layer == "77" else 0.40)
    printed = [line for line in synthetic_lines(found) if ", max " in line]

    assert len(printed) == 2 * len(KINDS) * 2
    for line in printed:
        label, *cells = line.partition("  ")[0], *line[28:].replace("(", " ").replace(")", " ").split()
        shown = [page for page in PAGE if page.startswith(f"{label}  ")]
        assert any(
            [float(x) for x in cells] == [pytest.approx(float(x), rel=2 * CLOSE, abs=0.002) for x in told]
            for told in (page[28:].replace("(", " ").replace(")", " ").split() for page in shown)
        ), (line, shown)


def test_the_pages_errors_of_rows_hold_what_is_promised() -> None:
    import torch
    from nvfp4_error import _distributions, _sizes

    torch.manual_seed(0)
    distributions, sizes = _distributions(4096), _sizes(4096)

    for label, errors in (distributions | sizes).items():
        _assert_line(label, errors)

    def ratio(errors: dict[str, float], way: str) -> float:
        return errors[way] / errors["rtn"]

    assert ratio(distributions["Gaussian"], "search") <= 0.74
    assert ratio(distributions["Student-t, 4 degrees"], "search") <= 0.82
    assert ratio(sizes["0.01"], "fold + search") <= 0.45
    assert ratio(sizes["0.002"], "fold + search") <= 0.30


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The command for a checkpoint, on the small model: three engines in one process."""
    if missing := [name for name in ("vllm", "safetensors", "transformers") if find_spec(name) is None]:
        pytest.skip(f"needs {missing[0]}: make test")
    folder = tmp_path_factory.mktemp("accuracy")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from cache_accuracy.small_model import make_model, prompts

        make_model(folder / "model")
        lines = [json.dumps(text) for text in prompts(3)]
    lines[1] = json.dumps({"prompt": json.loads(lines[1])})
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    engine = {"dtype": "bfloat16", "max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, "enforce_eager": True}
    done = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "nvfp4_accuracy.py"), "--checkpoint", str(folder / "model")),
            *("--prompts", str(folder / "prompts.jsonl"), "--settings", "fp8_ds_mla", "rtn", "fold+search"),
            *("--tokens", "256", "--needle-tokens", "200", "--depths", "0.5"),
            *("--engine", json.dumps(engine), "--json", "--plot", str(folder / "plot.svg")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) | {"plot": (folder / "plot.svg").read_text()}


def test_a_checkpoint_is_measured_under_every_cache_that_the_device_has(report: dict[str, Any]) -> None:
    model = report["model"]

    assert (model["device"], model["positions"], model["whole_vocabulary"]) == ("cpu", 3 * 255, True)
    stock, best = (model["divergences"][name] for name in ("rtn", "fold + search"))
    assert 0 < best["kl"] < 0.8 * stock["kl"]
    assert best["same_token"] > 0.5
    assert stock["fingerprint"] == "nvfp4_ds_mla-352-1/rtn/unfolded"
    # All six layers have another size than 1.
    assert best["fingerprint"].startswith("nvfp4_ds_mla-352-1/search/6-")
    assert list(model["refused"]) == ["fp8_ds_mla"]
    assert "no installed row format writes and reads such rows on the CPU" in model["refused"]["fp8_ds_mla"]
    assert "run it on a GPU" in model["refused"]["fp8_ds_mla"]


def test_needles_are_asked_for_and_their_selection_is_read(report: dict[str, Any]) -> None:
    """The model's answers mean nothing; 128 is its index_topk."""
    for needles in report["model"]["needles"].values():
        assert [needle["depth"] for needle in needles] == [0.5]
        for needle in needles:
            assert 200 < needle["tokens"] < 500
            assert needle["selected"] == 128
            assert 0 <= needle["recall"] <= 1
            assert not needle["found"]
            assert needle["answer"]


def test_the_pages_divergences_are_what_the_command_finds(report: dict[str, Any]) -> None:
    """Of a bfloat16 model other processors round other sums, so only the size is the same everywhere."""
    for name, found in report["model"]["divergences"].items():
        [line] = [line for line in PAGE if line.startswith(f"{name}  ") and line.endswith("%") and "|" not in line]
        assert float(line[28:48]) == pytest.approx(found["kl"], rel=0.3), name


def test_the_plot_is_an_image_with_a_bar_for_each_cache(report: dict[str, Any]) -> None:
    svg = "{http://www.w3.org/2000/svg}"
    image = ElementTree.fromstring(report["plot"])

    assert image.tag == f"{svg}svg"
    texts = [text.text for text in image.iter(f"{svg}text")]
    assert f"{report['model']['divergences']['rtn']['kl']:.3g}" in texts


def test_a_needle_is_where_its_positions_say(tmp_path: Path) -> None:
    from cache_accuracy.needle import make_needle

    transformers = pytest.importorskip("transformers", reason="needs transformers: make test")
    from glm53.model import make

    make(tmp_path / "model", layers=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    for depth in (0.0, 0.5, 1.0):
        needle = make_needle(tokenizer, 400, depth, seed=3)

        told = tokenizer.decode([needle.prompt[place] for place in needle.positions])
        assert told == f"The number of the grey door is {needle.answer}."
        assert len(needle.prompt) >= 400
        assert needle == make_needle(tokenizer, 400, depth, seed=3)
    assert make_needle(tokenizer, 400, 0.5, seed=4).answer != needle.answer


def test_rows_of_another_policy_or_fold_are_refused() -> None:
    from cache_accuracy.settings import CacheRefused, check_rows, named

    check_rows(named("fold+search"), "nvfp4_ds_mla-352-1/search/6-0")
    check_rows(named("fp8"), None)
    for seen in (None, "nvfp4_ds_mla-352-1/rtn/6-0", "nvfp4_ds_mla-352-1/search/unfolded"):
        with pytest.raises(CacheRefused, match=r"the workers' rows are .*allowed: policy search, folded"):
            check_rows(named("fold + search"), seen)
    with pytest.raises(ValueError, match="'bf8' is no way of caching that is compared; allowed: fp8, fp8_ds_mla, rtn"):
        named("bf8")


def test_a_cache_with_which_vllm_does_not_start_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fake vLLM that starts with no NVFP4 cache, as on a GPU without a reader; what it answers is one token."""
    from cache_accuracy import compare, engine
    from cache_accuracy.settings import REFERENCE, named

    class Refusing:
        def __init__(self, **arguments: Any) -> None:
            assert arguments["kv_cache_dtype"] != "nvfp4_ds_mla", "no reader"

    seen = engine.Observed([{1: 0.0}], whole=True)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Refusing))
    real = engine.observe

    def observe(model: str, setting: Any, questions: Any, **options: Any) -> Any:
        return real(model, setting, questions, **options) if setting.policy else seen

    monkeypatch.setattr(compare, "observe", observe)
    found = compare.compared("model", [named("rtn"), named("fp8")], engine.Questions(["a"], 1), {})

    assert (list(found["divergences"]), found["divergences"]["fp8"]["kl"]) == (["fp8"], 0.0)
    assert found["refused"]["rtn"].startswith("vLLM does not start with --kv-cache-dtype nvfp4_ds_mla here: Assertion")
    assert list(found["needles"]) == [REFERENCE.name, "fp8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "78"], "argument --layers: invalid choice: 78"),
        (["--keys", "0"], "argument --keys: 0 is not a positive number"),
        (["--depths", "1.5"], "argument --depths: 1.5 is no place in a text"),
        (["--engine", "[]"], r"argument --engine: \[\] names no arguments"),
        (["--plot", "no such folder/plot.svg"], "no such folder is no folder"),
        (["--prompts", "no such file"], "argument --prompts: no such file cannot be read"),
    ],
)
def test_arguments_are_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    command = importlib.import_module("nvfp4_accuracy")
    monkeypatch.setattr(sys, "argv", ["nvfp4_accuracy.py", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()

    assert end.value.code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("lines", ["", '{"text": "no prompt"}', '"a"\n7', "not JSON", '""'])
def test_prompts_are_texts(tmp_path: Path, lines: str) -> None:
    command = importlib.import_module("nvfp4_accuracy")
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    with pytest.raises(argparse.ArgumentTypeError, match="JSON"):
        command._texts(str(file))
    file.write_text('"a"\n\n{"prompt": "b"}\n')
    assert command._texts(str(file)) == ["a", "b"]


def test_a_checkpoint_needs_texts() -> None:
    command = [sys.executable, str(BENCHMARKS / "nvfp4_accuracy.py"), "--checkpoint", "somewhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, "--checkpoint without --prompts" in done.stderr) == (1, True)
