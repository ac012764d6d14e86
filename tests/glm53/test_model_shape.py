"""The small model's numbers: what is GLM-5.3's own, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from glm53.model import ModelError, Shape

# GLM-5.3: 78 layers of which these run an indexer, and one multi-token-prediction layer that has its own.
GLM53_LAYERS = 78
GLM53_INDEXED = (0, 1, 2, *range(6, 78, 4))


def test_the_layers_with_an_indexer_are_those_of_glm53() -> None:
    shape = Shape(layers=GLM53_LAYERS)

    assert tuple(layer for layer, own in enumerate(shape.indexed) if own) == GLM53_INDEXED
    assert sum(shape.indexed) == 21


def test_the_default_has_a_layer_that_shares_an_index() -> None:
    assert Shape().config()["indexer_types"] == ["full", "full", "full", "shared"]


def test_every_layer_caches_the_bytes_of_glm53() -> None:
    """Rows of 1,152 (bf16) and 132 bytes; the 101 of them make 6,010,368 bytes a block of 64 tokens."""
    config = Shape(layers=GLM53_LAYERS, mtp=True).config()
    attention = 2 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    index = config["index_head_dim"] + 4
    layers = config["num_hidden_layers"] + config["num_nextn_predict_layers"]
    indexers = config["indexer_types"].count("full") + config["num_nextn_predict_layers"]

    assert (attention, index, layers + indexers) == (1152, 132, 101)
    assert 64 * (layers * attention + indexers * index) == 6_010_368


def test_the_config_names_the_classes_and_the_index_heads_of_each_architecture() -> None:
    glm, deepseek = Shape().config(), Shape(architecture="deepseek_v32").config()

    assert (glm["architectures"], glm["model_type"]) == (["GlmMoeDsaForCausalLM"], "glm_moe_dsa")
    assert (deepseek["architectures"], deepseek["model_type"]) == (["DeepseekV32ForCausalLM"], "deepseek_v32")
    assert (glm["index_n_heads"], deepseek["index_n_heads"]) == (32, 64)
    assert "indexer_types" not in deepseek
    assert Shape(architecture="deepseek_v32").indexed == (True,) * 4


@pytest.mark.parametrize("layers", [1, 2, 4, 9])
def test_a_model_has_one_dense_layer_and_the_rest_are_experts(layers: int) -> None:
    assert Shape(layers=layers).config()["first_k_dense_replace"] == 1


@pytest.mark.parametrize(
    ("choices", "seen", "why", "allowed"),
    [
        ({"layers": 0}, "layers=0", "computes nothing", "1 or more"),
        ({"layers": -3}, "layers=-3", "computes nothing", "1 or more"),
        ({"seed": -1}, "seed=-1", "not negative", "0 or more"),
        ({"heads": 0}, "heads=0", "needs a head", "1 or more"),
        ({"experts": 1}, "experts=1", "goes to 2 experts", "2 or more"),
        ({"hidden": 100}, "hidden=100", "vectors of 32", "--hidden 128"),
        ({"hidden": 0}, "hidden=0", "vectors of 32", "--hidden 64"),
        ({"index_topk": 100}, "index_topk=100", "32 at a time", "--index-topk 128"),
        ({"index_topk": 0}, "index_topk=0", "32 at a time", "--index-topk 32"),
        ({"index_heads": 16}, "index_heads=16", "ties", "--index-heads 32"),
        ({"context": 128}, "context=128", "never be sparse", "--context"),
        ({"architecture": "llama"}, "architecture='llama'", "not known", "glm_moe_dsa, deepseek_v32"),
        ({"dtype": "float16"}, "dtype='float16'", "not known", "float32, bfloat16"),
    ],
)
def test_refuses_a_shape_that_cannot_work(choices: dict[str, Any], seen: str, why: str, allowed: str) -> None:
    with pytest.raises(ModelError) as caught:
        Shape(**choices)

    for part in (seen, why, allowed):
        assert part in str(caught.value)
