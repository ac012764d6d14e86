from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.v1.attention.ops.nvfp4_mla import folding
from vllm.v1.attention.ops.nvfp4_mla.errors import FoldRefused
from vllm.v1.attention.ops.nvfp4_mla.fold import folds_of
from vllm.v1.attention.ops.nvfp4_mla.reloading import require_followed

HEADS, NOPE, VALUE = 2, 192, 256
SETTING = "VLLM_NVFP4_MLA_FOLD"


@pytest.fixture(autouse=True)
def folding_is_on(monkeypatch):
    monkeypatch.setenv(SETTING, "1")


def model_of(size, cache_dtype="nvfp4_ds_mla"):
    """One attention layer whose latents have a root mean square of ``size``."""
    torch.manual_seed(0)
    layer = torch.nn.Module()
    shapes = {"q_b_proj": (HEADS * (NOPE + 64), 32), "kv_b_proj": (HEADS * (NOPE + VALUE), 512)}
    for name, shape in shapes.items():
        setattr(layer, name, torch.nn.Linear(shape[1], shape[0], bias=False))
    for name, width, value in (("q_a_layernorm", 32, 1.0), ("kv_a_layernorm", 512, size)):
        setattr(layer, name, torch.nn.Module())
        getattr(layer, name).weight = torch.nn.Parameter(torch.full((width,), value))
    layer.__dict__.update(kv_cache_dtype=cache_dtype, impl=SimpleNamespace(supports_quant_query_input=False))
    layer.__dict__.update(num_heads=HEADS, qk_nope_head_dim=NOPE, qk_rope_head_dim=64, v_head_dim=VALUE)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([layer])
    return model, layer


def loaded(model):
    config = SimpleNamespace(word_embeddings_untied_by_checkpoint=False, dtype=torch.float32, quantization=None)
    process_weights_after_loading(model, config, torch.device("cpu"))


def test_a_loaded_model_is_folded_once_and_its_logits_stay_what_they_were():
    model, layer = model_of(2.0**-6)
    latent = torch.randn(7, 512)
    before = layer.kv_b_proj(latent * layer.kv_a_layernorm.weight)
    loaded(model)
    loaded(model)
    assert folds_of(model).exponents == {"layers.0": 6}
    assert (layer.kv_a_layernorm.weight == 1).all()
    assert torch.equal(layer.kv_b_proj(latent * layer.kv_a_layernorm.weight), before)


def test_without_the_setting_and_with_other_rows_nothing_changes(monkeypatch):
    other, _ = model_of(2.0**-6, "fp8_ds_mla")
    loaded(other)
    assert folds_of(other).exponents == {}
    monkeypatch.delenv(SETTING)
    model, _ = model_of(2.0**-6)
    assert folding.fold_loaded(model) == {}


class Arrived(Exception):
    pass


def test_weights_that_are_loaded_again_are_folded_on_their_way(monkeypatch):
    model, layer = model_of(2.0**-6)
    loaded(model)
    arrived = SimpleNamespace(arguments={"loaded_weight": torch.full((512,), 2.0**-5)})

    def place(*unused):
        raise Arrived

    monkeypatch.setattr(layerwise, "materialize_layer", place)
    with pytest.raises(Arrived):
        layerwise._layerwise_process(layer.kv_a_layernorm, SimpleNamespace(loaded_weights=[("weight", arrived)]))
    assert (arrived.arguments["loaded_weight"] == 2.0).all()


def test_weights_that_came_past_the_loader_are_refused():
    model, layer = model_of(2.0**-6)
    loaded(model)
    require_followed(layer.kv_b_proj)
    layer.kv_a_layernorm.weight.data.fill_(2.0**-6)
    with pytest.raises(FoldRefused, match="loaded past"):
        require_followed(layer.kv_b_proj)
