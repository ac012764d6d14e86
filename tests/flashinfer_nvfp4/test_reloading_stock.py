"""Weights that are loaded again, through vLLM's own module-by-module reload; `test_fold_engine_stock` has an engine."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

import torch
from refused_rows import says

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.fold import fold_model
from flashinfer_nvfp4.patches import FOLD, REGISTER
from flashinfer_nvfp4.reloading import follow_reloads, refuse_processed, require_followed, require_reloads
from stockpatch.register import Register

SIZES = (0.01, 3.0)


class Model(torch.nn.Module):
    """Two layers with a plain and a block-quantized projection, which load as vLLM's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in SIZES)
        for layer, tensors in zip(self.layers, self.shapes(), strict=True):
            for name, tensor in tensors.items():
                module, _, parameter = name.partition(".")
                if not hasattr(layer, module):
                    layer.add_module(module, torch.nn.Module())
                getattr(layer, module).register_parameter(parameter, torch.nn.Parameter(tensor, requires_grad=False))

    @staticmethod
    def shapes() -> list[dict[str, torch.Tensor]]:
        norm = torch.zeros(512, dtype=torch.bfloat16)
        plain, quantized = (torch.zeros(256, 512, dtype=dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn))
        blocks = {"kv_b_proj.weight": quantized, "kv_b_proj.weight_scale_inv": torch.zeros(2, 4)}
        return [
            {"kv_a_layernorm.weight": norm, "kv_b_proj.weight": plain},
            {"kv_a_layernorm.weight": norm.clone(), **blocks},
        ]

    def load_weights(self, weights: Any) -> None:
        loaders = importlib.import_module("vllm.model_executor.model_loader.weight_utils")
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameter = parameters[name]
            getattr(parameter, "weight_loader", loaders.default_weight_loader)(parameter, tensor)


def _checkpoint(seed: int) -> list[tuple[str, torch.Tensor]]:
    """Weights of all tensors, the second layer's first and each projection in front of its norm."""
    torch.manual_seed(seed)
    found = []
    for number, tensors in reversed([*enumerate(Model.shapes())]):
        for name, tensor in reversed([*tensors.items()]):
            size = SIZES[number] if "norm" in name else 1.0
            found.append((f"layers.{number}.{name}", (torch.rand(tensor.shape) * size).to(tensor.dtype)))
    return found


def _bits(model: Model) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone().view(torch.uint8) for name, tensor in model.named_parameters()}


def _folded(seed: int) -> tuple[Model, dict[str, int]]:
    """What a first load of these weights gives."""
    model = Model()
    model.load_weights(_checkpoint(seed))
    return model, fold_model(model)


def _reload(model: Model, weights: Any) -> None:
    reload = importlib.import_module("vllm.model_executor.model_loader.reload")
    reload.initialize_layerwise_reload(model)
    model.load_weights(weights)
    reload.finalize_layerwise_reload(model, None)


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    register = Register("flashinfer_nvfp4_reloads", REGISTER.patches)
    register.apply(FOLD)
    yield
    register.revert()


@pytest.fixture
def served() -> tuple[Model, dict[str, int]]:
    """A model as an engine has it after its start."""
    reload = importlib.import_module("vllm.model_executor.model_loader.reload")
    model = Model()
    reload.record_metadata_for_reloading(model)
    model.load_weights(_checkpoint(1))
    exponents = fold_model(model)
    follow_reloads(model)
    return model, exponents


def test_a_reload_is_folded_as_the_first_load_was(served: Any) -> None:
    """The same weights give the same bits in the same memory; others give what a first load of them would give."""
    model, exponents = served
    first, places = _bits(model), [parameter.data_ptr() for parameter in model.parameters()]
    _reload(model, _checkpoint(1))

    assert exponents == {"layers.0": 7, "layers.1": -1}
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert all(torch.equal(bits, first[name]) for name, bits in _bits(model).items())

    other, same = _folded(2)
    assert same == exponents
    _reload(model, _checkpoint(2))
    assert all(torch.equal(bits, _bits(other)[name]) for name, bits in _bits(model).items())


def test_a_layer_keeps_its_exponent_whatever_is_loaded_again(served: Any) -> None:
    """Norms 64 times as large would ask for another; with the old one the product of norm and projection is right."""
    model, exponents = served
    larger = [(name, tensor * 64 if "norm" in name else tensor) for name, tensor in _checkpoint(2)]
    _reload(model, larger)
    raw = dict(larger)

    for number, exponent in enumerate(exponents.values()):
        norm = model.get_parameter(f"layers.{number}.kv_a_layernorm.weight")
        assert torch.equal(norm.float(), raw[f"layers.{number}.kv_a_layernorm.weight"].float() * 2.0**exponent)
    scales = model.get_parameter("layers.1.kv_b_proj.weight_scale_inv")
    assert torch.equal(scales, raw["layers.1.kv_b_proj.weight_scale_inv"] * 2.0)


def test_a_part_of_the_weights_is_folded_by_itself(served: Any) -> None:
    """What did not come stays as it was, folded."""
    model, _ = served
    first = _bits(model)
    other = _bits(_folded(2)[0])
    _reload(model, [pair for pair in _checkpoint(2) if pair[0] == "layers.0.kv_a_layernorm.weight"])

    for name, bits in _bits(model).items():
        assert torch.equal(bits, (other if name == "layers.0.kv_a_layernorm.weight" else first)[name])


def test_a_weight_that_cannot_be_folded_exactly_ends_the_reload(served: Any) -> None:
    model, _ = served
    broken = [(name, tensor * 0 + 1e38 if "norm" in name else tensor) for name, tensor in _checkpoint(1)]
    with pytest.raises(FoldRefused, match=r"weight of Module, loaded again, of torch.bfloat16 times 2\*\*7"):
        _reload(model, broken)


def test_weights_that_were_loaded_past_the_reload_are_refused_once_they_are_processed(served: Any) -> None:
    """By code that calls a model's own load_weights, and then has vLLM process them."""
    model, _ = served
    projections = [layer.kv_b_proj for layer in model.layers]
    for weights in (_checkpoint(1), _checkpoint(2)):
        _reload(model, weights)
        for projection in projections:
            require_followed(projection)

    model.load_weights(_checkpoint(2))
    for projection in projections:
        with pytest.raises(FoldRefused) as refused:
            require_followed(projection)
        says("nvfp4-loaded-past", str(refused.value))
    require_followed(torch.nn.Linear(1, 1))


def test_kernel_format_under_a_fold_is_refused_before_anything_is_copied(served: Any) -> None:
    """By the function that vLLM calls for each parameter, in the module of each release."""
    inplace = importlib.util.find_spec("vllm.model_executor.model_loader.reload.inplace")
    if inplace is None:
        resolve = importlib.import_module("vllm.v1.worker.gpu_model_runner")._get_parameter_for_reload
    else:
        resolve = importlib.import_module(inplace.name).get_parameter_for_reload
    model, _ = served
    with pytest.raises(FoldRefused, match=r"FLASHINFER_NVFP4_FOLD=off") as refused:
        resolve(model, "layers.0.kv_a_layernorm.weight")
    says("nvfp4-kernel-format", str(refused.value))

    plain = Model()
    assert resolve(plain, "layers.0.kv_b_proj.weight") is plain.get_parameter("layers.0.kv_b_proj.weight")
    fold_model(plain, {})
    refuse_processed(plain)


@pytest.mark.parametrize("transfer", ["sparse_nccl", "sharded_rdt", "nccl_m2n", "mine"])
def test_weight_transfers_that_pass_the_loader_by_are_refused(transfer: str) -> None:
    with pytest.raises(FoldRefused, match=rf"backend='{transfer}'.*past the loader") as refused:
        require_reloads(transfer)
    says("nvfp4-weight-transfer", str(refused.value))


@pytest.mark.parametrize("transfer", [None, "nccl", "ipc"])
def test_weight_transfers_through_the_loader_are_followed(transfer: str | None) -> None:
    require_reloads(transfer)
