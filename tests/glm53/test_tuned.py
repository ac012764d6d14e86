"""``glm53 tuned``: folders as training writes them, and the deployment that is made of each."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_files import RECIPES
from typer.testing import CliRunner

from glm53.cli import app
from glm53.deployment import load
from glm53.lint.commands import from_manifests, option

runner = CliRunner()
BASE = next(path for path in RECIPES if path.stem == "glm53-fine-tuned")

#: The part of GLM-5.3's published config.json that recipes rest on.
CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 202_752,
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 32, "base_model_name_or_path": "zai-org/GLM-5.3", "bias": "none"}


def _safetensors(path: Path, *names: str) -> None:
    header = json.dumps({name: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for name in names}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def _checkpoint(folder: Path, *, mtp: bool = True, template: bool = True, **changes: Any) -> Path:
    """A checkpoint whose tensors are empty: everything but the weights' bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    if template:
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    layers = [f"model.layers.{layer}.input_layernorm.weight" for layer in (77, 78)]
    _safetensors(folder / "model.safetensors", *layers[: 1 + mtp])
    return folder


def _adapter(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(LORA | changes))
    _safetensors(folder / "adapter_model.safetensors", "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight")
    return folder


def _tuned(folder: Path, out: Path, *options: str) -> tuple[int, str]:
    result = runner.invoke(app, ["tuned", str(folder), "-o", str(out), "--base", str(BASE), *options])
    return result.exit_code, result.stderr


def test_a_checkpoint_becomes_a_deployment_on_reserved_capacity(tmp_path: Path) -> None:
    code, said = _tuned(_checkpoint(tmp_path / "coder-v3"), tmp_path / "out")

    assert code == 0, said
    recipe = load(tmp_path / "out" / "recipe.yaml")
    assert (str(recipe.model.path), recipe.model.served_name) == ("checkpoints/coder-v3", "coder-v3")
    assert (recipe.model.weights, recipe.engine.mtp_depth, recipe.engine.max_model_len) == ("nvfp4", 3, 202_752)
    assert (recipe.capacity.policy, recipe.targets, recipe.name) == ("reserved", ("kubernetes",), "glm53-coder-v3")
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir() if path.name != "recipe.yaml"}
    engines = [one for one in from_manifests(files) if one.kind == "engine"]
    assert {option(one, "--model") for one in engines} == {"/models/checkpoints/coder-v3"}
    assert "upload.sh NAMESPACE" in said
    assert "coder-v3 checkpoints/coder-v3\n" in said


def test_an_adapter_is_served_beside_its_base(tmp_path: Path) -> None:
    code, said = _tuned(_adapter(tmp_path / "tuned"), tmp_path / "out", "--name", "docs-writer")

    assert code == 0, said
    recipe = load(tmp_path / "out" / "recipe.yaml")
    (adapter,) = recipe.model.adapters
    assert (recipe.model.repository, recipe.model.path) == ("nvidia/GLM-5.3-NVFP4", None)
    assert (adapter.name, adapter.uri, adapter.rank) == ("docs-writer", "file:///models/adapters/docs-writer", 32)
    (model,) = yaml.safe_load_all((tmp_path / "out" / "adapters.yaml").read_text())
    assert model["spec"]["source"] == {"uri": "file:///models/adapters/docs-writer"}


def test_what_training_left_out_or_changed_is_in_the_recipe(tmp_path: Path) -> None:
    short = _checkpoint(tmp_path / "short", mtp=False, max_position_embeddings=65_536)
    code, said = _tuned(short, tmp_path / "out", "--to", "slurm")

    assert code == 0
    assert "no prediction layer" in said
    recipe = load(tmp_path / "out" / "recipe.yaml")
    assert (recipe.engine.mtp_depth, recipe.engine.max_model_len, recipe.targets) == (0, 65_536, ("slurm",))
    assert f"upload.sh {short} checkpoints/short\n" in said


def test_serverless_capacity_of_the_base_is_not_taken_over(tmp_path: Path) -> None:
    batch = next(path for path in RECIPES if path.stem == "glm53-batch")
    code, said = _tuned(_checkpoint(tmp_path / "a"), tmp_path / "out", "--base", str(batch))

    assert code == 0, said
    assert load(tmp_path / "out" / "recipe.yaml").capacity.policy == "reserved"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "glm4_moe"}, "model_type='glm4_moe', and GLM-5.3 has 'glm_moe_dsa'"),
        ({"num_hidden_layers": 47}, "num_hidden_layers=47"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized as 'awq"),
        ({"quantization_config": None, "dtype": "float32"}, "dtype='float32'"),
        ({"quantization_config": 5}, "quantization_config=5 is no object"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings='long'"),
        ({"template": False}, "no chat template"),
    ],
)
def test_a_checkpoint_that_the_recipe_is_not_for_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    code, said = _tuned(_checkpoint(tmp_path / "a", **changes), tmp_path / "out")

    assert (code, words in said, (tmp_path / "out").exists()) == (2, True, False), said


def test_weights_that_do_not_fit_the_groups_are_a_finding(tmp_path: Path) -> None:
    code, said = _tuned(_checkpoint(tmp_path / "a", quantization_config=None), tmp_path / "out")

    assert (code, (tmp_path / "out").exists()) == (1, False)
    assert "weights-do-not-fit" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_model_name_or_path": "zai-org/GLM-5.3-Flash"}, "is no GLM-5.3"),
        ({"base_model_name_or_path": None}, "is no GLM-5.3"),
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=['lm_head']"),
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"r": 1024}, "r=1024"),
    ],
)
def test_an_adapter_that_vllm_does_not_serve_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    code, said = _tuned(_adapter(tmp_path / "a", **changes), tmp_path / "out")

    assert (code, words in said) == (2, True), said


def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (_checkpoint(tmp_path / "torn") / "tokenizer.json").unlink()
    (_adapter(tmp_path / "adapter") / "adapter_model.safetensors").unlink()

    for name in ("empty", "torn", "adapter", "absent"):
        assert _tuned(tmp_path / name, tmp_path / "out")[0] == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 9, b"\2" + b"\0" * 7 + b"5 ", b'\5\0\0\0\0\0\0\0{"a":'],
    ids=["empty", "long", "5", "cut"],
)
def test_weights_that_were_copied_in_part_are_named(content: bytes, tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "a")
    (folder / "model.safetensors").write_bytes(content)
    code, said = _tuned(folder, tmp_path / "out")

    assert code == 2, said
    assert "model.safetensors has no header of safetensors" in said


def test_an_index_without_a_map_is_named(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "a")
    (folder / "model.safetensors.index.json").write_text("{}")
    code, said = _tuned(folder, tmp_path / "out")

    assert code == 2, said
    assert "weight_map" in said


@pytest.mark.parametrize(
    ("section", "value", "field"),
    [
        ("model", ["a"], "model"),
        ("model", {"weights": "nvfp4"}, "model.served_name"),
        ("engine", 5, "engine"),
        ("engine", {"max_model_len": "long"}, "engine.max_model_len"),
        ("capacity", "reserved", "capacity"),
    ],
)
def test_a_base_whose_sections_are_of_another_type_has_findings(
    section: str, value: Any, field: str, tmp_path: Path
) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(yaml.safe_load(BASE.read_text()) | {section: value}))
    code, said = _tuned(_adapter(tmp_path / "a"), tmp_path / "out", "--base", str(base))

    assert code == 1, said
    assert f"{field}: " in said
    assert not (tmp_path / "out").exists()


def test_options_that_cannot_be_are_two(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "a")

    assert _tuned(folder, tmp_path / "out", "--to", "local")[0] == 2
    assert _tuned(folder, tmp_path / "out", "--name", "My Model")[0] == 2


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for kubectl that runs what is executed in the pod on this machine, its volume in a folder."""
    volume, tools = tmp_path / "volume", tmp_path / "bin"
    volume.mkdir()
    tools.mkdir()
    kubectl = f"""#!/bin/bash
shift 2
echo "$*" >> {tmp_path}/calls
if [ "$1" = apply ] && [ "$3" = - ]; then cat > {tmp_path}/pod.yaml; fi
[ "$1" = exec ] || exit 0
shift 4
exec "${{@//\\/models/{str(volume).replace("/", chr(92) + "/")}}}"
"""
    (tools / "kubectl").write_text(kubectl)
    (tools / "docker").write_text("#!/bin/bash\necho sha256:$(echo $4 | sha256sum | cut -c1-64)\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return volume


def test_one_command_copies_the_folder_once_and_launches(tmp_path: Path, cluster: Path) -> None:
    """Run for real, but for kubectl and docker."""
    folder = _checkpoint(tmp_path / "coder")
    code, said = _tuned(folder, tmp_path / "out", "--launch", "space")

    assert code == 0, said
    copied = cluster / "checkpoints" / "coder"
    assert {path.name for path in copied.iterdir()} == {path.name for path in folder.iterdir()} | {".complete"}
    assert (copied / "config.json").read_text() == (folder / "config.json").read_text()
    (pod,) = yaml.safe_load_all((tmp_path / "pod.yaml").read_text())
    assert pod["spec"]["volumes"] == [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    calls = (tmp_path / "calls").read_text()
    assert "delete pod glm53-coder-upload" in calls
    assert "wait --for=condition=Ready --timeout=3h dynamographdeployment/glm53-coder" in calls
    assert "@sha256:" in (tmp_path / "out" / "graph.yaml").read_text()

    (tmp_path / "calls").unlink()
    assert _tuned(folder, tmp_path / "out", "--launch", "space")[0] == 0
    assert " tar " not in (tmp_path / "calls").read_text()


def test_another_folder_of_the_same_name_does_not_replace_what_is_served(tmp_path: Path, cluster: Path) -> None:
    folder = _checkpoint(tmp_path / "coder")
    assert _tuned(folder, tmp_path / "out", "--launch", "space")[0] == 0
    (folder / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4_096_000}))

    assert _tuned(folder, tmp_path / "out", "--launch", "space")[0] == 1
    served = json.loads((cluster / "checkpoints" / "coder" / "config.json").read_text())
    assert served["max_position_embeddings"] == 202_752


def test_a_folder_that_somebody_else_put_there_is_left_alone(tmp_path: Path, cluster: Path) -> None:
    theirs = cluster / "checkpoints" / "coder"
    theirs.mkdir(parents=True)

    assert _tuned(_checkpoint(tmp_path / "coder"), tmp_path / "out", "--launch", "space")[0] == 1
    assert list(theirs.iterdir()) == []


def test_on_slurm_the_folder_is_copied_into_the_shared_one(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "it's mine")
    raw = yaml.safe_load(BASE.read_text())
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(raw | {"cluster": {"rdma": "rdma/ib", "shared": str(tmp_path / "shared")}}))
    assert _tuned(folder, tmp_path / "out", "--name", "mine", "--to", "slurm", "--base", str(base))[0] == 0
    command = ["bash", str(tmp_path / "out" / "upload.sh"), str(folder), "checkpoints/mine"]

    for said in ("copied to", "is there already"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout) == (0, True), done.stderr
    copied = tmp_path / "shared" / "checkpoints" / "mine"
    assert (copied / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
