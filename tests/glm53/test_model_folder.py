"""Making, remaking and checking a model folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glm53.model import ModelError, Shape, folder, make, verify

pytest.importorskip("numpy", reason="needs numpy: pip install '.[demo]'")

SMALL: dict[str, Any] = {"layers": 2, "hidden": 64, "experts": 2}
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "glm53-model.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def _hashes(model: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}


def test_makes_every_file_and_nothing_beside_it(tmp_path: Path) -> None:
    made = make(tmp_path / "deep" / "model", **SMALL)

    assert made.written
    assert set(os.listdir(tmp_path / "deep" / "model")) == FILES
    assert os.listdir(tmp_path / "deep") == ["model"]
    assert json.loads((tmp_path / "deep" / "model" / "config.json").read_text()) == Shape(**SMALL).config()


def test_files_are_readable_like_any_other_the_user_writes(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    make(tmp_path / "model", **SMALL)
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}

    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_equal_arguments_give_equal_bytes_in_another_process(tmp_path: Path) -> None:
    make(tmp_path / "here", **SMALL)
    code = f"from glm53.model import make; make({str(tmp_path / 'there')!r}, **{SMALL!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})

    assert _hashes(tmp_path / "here") == _hashes(tmp_path / "there")
    assert verify(tmp_path / "here").fingerprint == verify(tmp_path / "there").fingerprint


@pytest.mark.parametrize("change", [{"seed": 1}, {"layers": 3}, {"dtype": "bfloat16"}, {"index_topk": 64}])
def test_other_arguments_give_another_fingerprint(tmp_path: Path, change: dict[str, Any]) -> None:
    first, second = make(tmp_path / "a", **SMALL), make(tmp_path / "b", **{**SMALL, **change})

    assert first.manifest.fingerprint != second.manifest.fingerprint


def test_making_the_same_model_again_touches_nothing(tmp_path: Path) -> None:
    make(tmp_path / "model", **SMALL)
    before = {path: path.stat().st_mtime_ns for path in [tmp_path / "model", *(tmp_path / "model").iterdir()]}
    again = make(tmp_path / "model", **SMALL)

    assert not again.written
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_model_of_ours_is_replaced_as_a_whole(tmp_path: Path) -> None:
    make(tmp_path / "model", **SMALL)
    made = make(tmp_path / "model", **SMALL, seed=5)

    assert made.written
    assert verify(tmp_path / "model").shape.seed == 5
    assert os.listdir(tmp_path) == ["model"]


def test_a_changed_maker_makes_its_folder_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "model", **SMALL)
    monkeypatch.setattr(folder, "_recipe", lambda: "another")

    assert make(tmp_path / "model", **SMALL).written


def test_an_empty_folder_and_a_link_to_a_folder_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make(tmp_path / "link", **SMALL)

    assert (tmp_path / "link").is_symlink()
    assert set(os.listdir(tmp_path / "real")) == FILES


def test_a_damaged_own_folder_is_repaired(tmp_path: Path) -> None:
    make(tmp_path / "model", **SMALL)
    whole = _hashes(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "config.json").write_text("{}")

    assert make(tmp_path / "model", **SMALL).written
    assert _hashes(tmp_path / "model") == whole


@pytest.mark.parametrize("ours", [False, True])
def test_refuses_to_replace_a_folder_with_foreign_files(tmp_path: Path, ours: bool) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if ours:
        make(model, **SMALL)
    (model / "thesis.txt").write_text("precious")

    with pytest.raises(ModelError, match=r"holds 'thesis\.txt'.*Choose another DIR"):
        make(model, **SMALL, seed=9)

    assert (model / "thesis.txt").read_text() == "precious"
    assert os.listdir(tmp_path) == ["model"]


def test_refuses_to_replace_a_folder_whose_manifest_it_cannot_read(tmp_path: Path) -> None:
    make(tmp_path / "model", **SMALL)
    (tmp_path / "model" / "glm53-model.json").write_text('{"shape": {"colour": 1}}')

    with pytest.raises(ModelError, match=r"cannot be read.*remove this one"):
        make(tmp_path / "model", **SMALL)


def test_refuses_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")

    with pytest.raises(ModelError, match="is a file"):
        make(tmp_path / "model", **SMALL)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_make_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException], existing: bool
) -> None:
    if existing:
        make(tmp_path / "model", **SMALL)
    before = _hashes(tmp_path / "model") if existing else None

    def interrupted(*_: object) -> None:
        raise failure

    monkeypatch.setattr("glm53.model.weights.write", interrupted)
    with pytest.raises(failure):
        make(tmp_path / "model", **SMALL, seed=3)

    assert os.listdir(tmp_path) == (["model"] if existing else [])
    assert not existing or _hashes(tmp_path / "model") == before


def test_two_makes_at_once_end_with_one_whole_model(tmp_path: Path) -> None:
    code = f"from glm53.model import make; make({str(tmp_path / 'model')!r}, **{SMALL!r})"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]

    assert [process.wait(120) for process in running] == [0] * 4
    assert verify(tmp_path / "model").shape == Shape(**SMALL)
    assert os.listdir(tmp_path) == ["model"]


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    model = tmp_path / "model"
    with pytest.raises(ModelError, match=r"no such directory.*glm53 model make"):
        verify(model)
    model.mkdir()
    with pytest.raises(ModelError, match=r"no glm53-model\.json"):
        verify(model)
    make(model, **SMALL)
    assert verify(model).shape == Shape(**SMALL)

    (model / "extra.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"extra\.safetensors does not belong"):
        verify(model)
    (model / "extra.safetensors").unlink()

    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        verify(model)

    make(model, **SMALL)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ModelError, match=r"model\.safetensors was changed"):
        verify(model)

    (model / "glm53-model.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        verify(model)


def test_the_maker_needs_no_engine(tmp_path: Path) -> None:
    code = (
        "import sys, glm53.model; light = {'numpy'} & set(sys.modules);"
        f"glm53.model.make({str(tmp_path / 'model')!r}, **{SMALL!r});"
        "print(light | ({'torch', 'transformers', 'vllm', 'dynamo', 'mooncake'} & set(sys.modules)))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
