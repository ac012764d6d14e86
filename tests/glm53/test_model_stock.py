"""The model folder in the hands of transformers and vLLM, the programs it is made for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm53.model import Shape, make
from glm53.model.weights import tensors

FIX = "needs the pinned stock environment: make test"
torch = pytest.importorskip("torch", reason=FIX)
transformers = pytest.importorskip("transformers", reason=FIX)
os.environ["HF_HUB_OFFLINE"] = "1"

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    base = tmp_path_factory.mktemp("models")

    def made(**choices: Any) -> Path:
        path = base / ("-".join(f"{key}-{value}" for key, value in choices.items()) or "default")
        make(path, **choices)
        return path

    return made


def _loaded(path: Path) -> tuple[Any, dict[str, Any]]:
    model, found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", output_loading_info=True)
    return model.eval(), {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("architecture", ["glm_moe_dsa", "deepseek_v32"])
@pytest.mark.parametrize("layers", [1, 4, 7])
def test_transformers_loads_every_weight_and_misses_none(folder: Folder, architecture: str, layers: int) -> None:
    model, problems = _loaded(folder(architecture=architecture, layers=layers))

    assert problems == {}
    assert type(model).__name__ == model.config.architectures[0]
    assert model.dtype == torch.float32


def test_only_the_prediction_layer_is_unknown_to_transformers(folder: Folder) -> None:
    _, problems = _loaded(folder(mtp=True))

    assert set(problems) == {"unexpected_keys"}
    assert all(name.startswith("model.layers.4.") for name in problems["unexpected_keys"])


@pytest.mark.parametrize("layers", [1, 2, 4, 7, 78])
def test_transformers_derives_the_same_shared_layers_from_the_schedule(layers: int) -> None:
    config = Shape(layers=layers).config()
    listed = config.pop("indexer_types")

    assert transformers.GlmMoeDsaConfig(**config).indexer_types == listed


def test_bfloat16_weights_are_the_float32_ones_as_torch_rounds_them(folder: Folder) -> None:
    from safetensors.torch import load_file

    single = load_file(folder(layers=2) / "model.safetensors")
    half = load_file(folder(layers=2, dtype="bfloat16") / "model.safetensors")
    exact = {tensor.name for tensor in tensors(Shape(layers=2)) if tensor.exact}

    assert set(single) == set(half)
    for name, values in single.items():
        expected = values if name in exact else values.to(torch.bfloat16)
        assert half[name].dtype == expected.dtype
        assert torch.equal(half[name], expected)


def test_the_choice_of_positions_decides_the_answer(folder: Folder) -> None:
    """Beyond index_topk, attending to everything instead gives other logits: errors there would be seen."""
    sparse, _ = _loaded(folder(index_topk=32))
    dense, _ = _loaded(folder(index_topk=1024))
    ids = torch.tensor([[(7 * i) % 90 + 33 for i in range(200)]])
    with torch.no_grad():
        difference = (sparse(ids).logits - dense(ids).logits).abs().amax(-1)[0]

    assert difference[:32].max() < 1e-3
    assert difference[64:].min() > 0.1


def test_greedy_answers_are_readable_text(folder: Folder) -> None:
    path = folder()
    model, _ = _loaded(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    ids = torch.tensor([tokenizer.encode("What is in this folder?")])
    with torch.no_grad():
        answer = tokenizer.decode(model.generate(ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :])

    assert len(answer) == 48
    assert answer.isascii()


def test_transformers_knows_the_tokens_that_end_and_pad(folder: Folder) -> None:
    path = folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    generation = transformers.GenerationConfig.from_pretrained(path)

    assert tokenizer.convert_ids_to_tokens(generation.eos_token_id) == [
        "<|endoftext|>",
        "<|user|>",
        "<|observation|>",
    ]
    assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.pad_token_id == generation.pad_token_id
