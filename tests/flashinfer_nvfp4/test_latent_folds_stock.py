"""Folding the tensors of a model: the same outputs, once and only once, in every form the weights come in."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.fold import LatentFolds, fold_exponent, fold_model, mla_tensors, unfold_model

HEADS, NOPE, VALUE = 2, 16, 24
NORM, PROJECTION = "layers.3.self_attn.kv_a_layernorm.weight", "layers.3.self_attn.kv_b_proj."
LAYER = "layers.3.self_attn"


def _tensors(size: float = 0.01, **changed: Any) -> dict[str, Any]:
    """One layer whose norm weight has about this root mean square; ``changed`` replaces or adds kv_b_proj tensors."""
    torch.manual_seed(0)
    parts = {"weight": torch.randn(HEADS * (NOPE + VALUE), 512).bfloat16() / 8, **changed}
    return {NORM: (torch.rand(512) * size).bfloat16(), **{PROJECTION + name: part for name, part in parts.items()}}


def _copies(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _equal(mine: dict[str, Any], right: dict[str, Any]) -> bool:
    return mine.keys() == right.keys() and all(
        torch.equal(a.view(-1).view(torch.uint8), right[name].view(-1).view(torch.uint8)) for name, a in mine.items()
    )


class _Attention(torch.nn.Module):
    """MLA's latent part with vLLM's names: norm, projection, and bfloat16 attention in both of its forms."""

    def __init__(self, size: float) -> None:
        super().__init__()
        tensors = _tensors(size)
        self.kv_a_layernorm, self.kv_b_proj = torch.nn.Module(), torch.nn.Linear(512, 1, bias=False)
        self.kv_a_layernorm.weight = torch.nn.Parameter(tensors[NORM])
        self.kv_b_proj.weight = torch.nn.Parameter(tensors[PROJECTION + "weight"])

    def _latent(self, x: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (normed * self.kv_a_layernorm.weight.float()).bfloat16()

    def expanded(self, x: Any, q: Any) -> tuple[Any, Any]:
        """Logits and outputs with keys and values expanded, as in dense prefill."""
        k, v = self.kv_b_proj(self._latent(x)).view(-1, HEADS, NOPE + VALUE).split([NOPE, VALUE], -1)
        logits = torch.einsum("thn,khn->thk", q, k)
        return logits, torch.einsum("thk,khv->thv", logits.float().softmax(-1).bfloat16(), v)

    def absorbed(self, x: Any, q: Any) -> tuple[Any, Any]:
        """Logits and outputs with the query absorbed, as in decode from the latent cache."""
        w_uk, w_uv = self.kv_b_proj.weight.view(HEADS, NOPE + VALUE, 512).split([NOPE, VALUE], 1)
        latent = self._latent(x)
        logits = torch.einsum("thl,kl->thk", torch.einsum("thn,hnl->thl", q, w_uk), latent)
        mixed = torch.einsum("thk,kl->thl", logits.float().softmax(-1).bfloat16(), latent)
        return logits, torch.einsum("thl,hvl->thv", mixed, w_uv)


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("size", [0.004, 0.3, 40.0])
def test_logits_and_outputs_are_bit_equal_in_bfloat16(form: str, size: float) -> None:
    model = _Attention(size)
    x, q = torch.randn(40, 512).bfloat16(), torch.randn(9, HEADS, NOPE).bfloat16()
    with torch.no_grad():
        logits, out = getattr(model, form)(x, q)
        latent = model._latent(x)
        [exponent] = fold_model(model).values()
        folded_logits, folded_out = getattr(model, form)(x, q)

    assert exponent != 0
    assert torch.equal(model._latent(x), latent * 2.0**exponent)
    assert torch.equal(folded_logits, logits)
    assert torch.equal(folded_out, out)
    assert logits.isfinite().all()
    assert logits.std() > 0


def test_the_norm_takes_the_factor_and_the_projection_its_reciprocal() -> None:
    tensors = _tensors(0.01)
    before = _copies(tensors)
    exponents = LatentFolds().apply(tensors)

    k = fold_exponent(before[NORM])
    assert k == 7  # a root mean square of 0.0058, times 128
    assert exponents == {LAYER: k}
    assert torch.equal(tensors[NORM], before[NORM] * 128)
    assert torch.equal(tensors[PROJECTION + "weight"], before[PROJECTION + "weight"] / 128)


def _blocks_fp8(weight: Any) -> tuple[Any, Any]:
    """A [80, 512] weight in e4m3 with a float32 scale for each 128 x 128 block, as DeepSeek's checkpoints have it."""
    padded = torch.zeros(128, 512)
    padded[:80] = weight.float()
    scales = padded.view(1, 128, 4, 128).abs().amax((1, 3)) / 448
    return (padded / scales.repeat_interleave(128, 0).repeat_interleave(128, 1))[:80].to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize(
    ("extra", "carrier"),
    [
        ({"weight_scale_inv": torch.rand(1, 4)}, "weight_scale_inv"),
        ({"weight_scale": torch.tensor(0.02)}, "weight_scale"),
        ({"weight_scale": torch.rand(80, 1).bfloat16()}, "weight_scale"),
        ({"weight_scale": torch.full((80, 16), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)}, "weight_scale"),
        (
            {"weight_scale": torch.ones(80, 32).to(torch.float8_e4m3fn), "weight_scale_2": torch.tensor(0.1)},
            "weight_scale_2",
        ),
    ],
    ids=["fp8-blocks", "fp8", "fp8-channels", "mxfp8", "nvfp4"],
)
def test_of_a_quantized_projection_only_the_outermost_scale_changes(extra: dict[str, Any], carrier: str) -> None:
    codes = torch.randint(0, 120, (80, 512), dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = _tensors(weight=codes, **extra)
    before = _copies(tensors)
    [k] = LatentFolds().apply(tensors).values()

    assert k == 7
    assert torch.equal(tensors[PROJECTION + carrier].float(), before[PROJECTION + carrier].float() / 128)
    unchanged = [name for name in tensors if name not in (NORM, PROJECTION + carrier)]
    assert len(unchanged) == len(extra)
    assert _equal({name: tensors[name] for name in unchanged}, {name: before[name] for name in unchanged})


def test_exponents_that_vllm_keeps_as_uint8_are_counted_down() -> None:
    """Of MXFP8: codes are exponents with a bias of 127. Those that would fall below the smallest are refused."""
    codes = torch.ones(80, 512).to(torch.float8_e4m3fn)
    scales = torch.arange(7, 255, dtype=torch.uint8)[: 80 * 3].view(80, 3)
    tensors = _tensors(weight=codes, weight_scale=scales.clone())
    LatentFolds().apply(tensors)
    assert torch.equal(tensors[PROJECTION + "weight_scale"], scales - 7)

    with pytest.raises(FoldRefused, match=r"weight_scale of torch.uint8 times 2\*\*-7.*would leave the range"):
        LatentFolds().apply(_tensors(weight=codes, weight_scale=scales - 1))


def test_a_block_quantized_projection_dequantizes_to_the_folded_weight() -> None:
    codes, scales = _blocks_fp8(_tensors()[PROJECTION + "weight"])
    tensors = _tensors(weight=codes, weight_scale_inv=scales)

    def dense() -> Any:
        blocks = tensors[PROJECTION + "weight_scale_inv"].repeat_interleave(128, 1)
        return (tensors[PROJECTION + "weight"].float() * blocks).bfloat16()

    before = dense()
    LatentFolds().apply(tensors)

    assert torch.equal(dense(), before / 128)


def test_a_static_input_scale_grows_with_the_latent() -> None:
    codes = torch.ones(80, 512).to(torch.float8_e4m3fn)
    tensors = _tensors(weight=codes, weight_scale=torch.tensor(0.5), input_scale=torch.tensor(0.25))
    LatentFolds().apply(tensors)

    assert tensors[PROJECTION + "input_scale"].item() == 0.25 * 128
    assert tensors[PROJECTION + "weight_scale"].item() == 0.5 / 128


def test_folding_twice_changes_nothing_more() -> None:
    folds, tensors = LatentFolds(), _tensors()
    first = folds.apply(tensors)
    after = _copies(tensors)

    assert folds.apply(tensors) == first == folds.exponents
    assert _equal(tensors, after)


def test_a_folded_checkpoint_has_nothing_left_to_fold() -> None:
    tensors = _tensors()
    LatentFolds().apply(tensors)
    after = _copies(tensors)

    assert LatentFolds().apply(tensors) == {LAYER: 0}
    assert _equal(tensors, after)


@pytest.mark.parametrize("loaded", [(NORM,), (PROJECTION + "weight",), (NORM, PROJECTION + "weight")])
@pytest.mark.parametrize("size", [0.01, 3.0])
def test_weights_loaded_again_are_folded_again_whichever_were_loaded(loaded: tuple[str, ...], size: float) -> None:
    """The old values or, as in training, others that need another exponent."""
    folds, tensors = LatentFolds(), _tensors()
    folds.apply(tensors)
    raw, new = _tensors(), {name: tensor * 3 for name, tensor in _tensors(size).items()}
    for name in loaded:
        tensors[name].copy_(new[name])
        raw[name] = new[name]
    exponents = folds.apply(tensors)

    expected = _copies(raw)
    assert exponents == LatentFolds().apply(expected)
    assert _equal(tensors, expected)


def test_undoing_restores_every_bit() -> None:
    folds, tensors = LatentFolds(), _tensors()
    before = _copies(tensors)
    folds.apply(tensors)
    folds.undo(tensors)

    assert _equal(tensors, before)
    assert folds.exponents == {LAYER: 0}


def test_given_exponents_are_used_and_layers_without_one_are_left() -> None:
    tensors = _tensors()
    tensors.update({name.replace("3", "4"): tensor.clone() for name, tensor in _tensors().items()})
    before = _copies(tensors)
    folds = LatentFolds()

    assert folds.apply(tensors, {LAYER: -2}) == {LAYER: -2, "layers.4.self_attn": 0}
    assert torch.equal(tensors[NORM], before[NORM] / 4)
    assert torch.equal(tensors[NORM.replace("3", "4")], before[NORM.replace("3", "4")])
    with pytest.raises(
        FoldRefused, match=r"exponents for \['layers.9.self_attn'\].*no such layers.*layers.3.self_attn"
    ):
        folds.apply(tensors, {"layers.9.self_attn": 1})


@pytest.mark.parametrize("exponent", [1.5, 65, -2000])
def test_given_exponents_are_whole_numbers_of_a_size_that_a_latent_may_need(exponent: Any) -> None:
    tensors = _tensors()
    before = _copies(tensors)

    with pytest.raises(FoldRefused, match=rf"exponents .*{exponent}.*whole numbers from -64 to 64"):
        LatentFolds().apply(tensors, {LAYER: exponent})
    assert _equal(tensors, before)


def test_a_tensor_of_two_layers_is_refused() -> None:
    """Folded once for each, it would carry both factors, and each projection only one reciprocal."""
    tensors = _tensors()
    other = {name.replace("3", "4"): tensor for name, tensor in _tensors().items()}
    tensors = {**tensors, **other, NORM.replace("3", "4"): tensors[NORM]}
    before = _copies(tensors)

    with pytest.raises(FoldRefused, match=r"layers.3.*norm.weight and layers.4.*norm.weight in one memory"):
        LatentFolds().apply(tensors)
    assert _equal(tensors, before)


def test_a_refusal_leaves_all_layers_as_they_were() -> None:
    tensors = _tensors()
    broken = _tensors(weight=torch.full((80, 512), 2.0**-126).bfloat16() * 1.5)
    tensors.update({name.replace("3", "4"): tensor for name, tensor in broken.items()})
    before = _copies(tensors)
    folds = LatentFolds()

    with pytest.raises(FoldRefused, match=r"layers.4.self_attn.kv_b_proj.weight of torch.bfloat16 times 2\*\*-7"):
        folds.apply(tensors)
    assert _equal(tensors, before)
    assert folds.exponents == {}
    assert folds.apply(tensors, {LAYER: 7}) == {LAYER: 7, "layers.4.self_attn": 0}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"0 tensors: none is an MLA latent norm.*Pass an MLA model"),
        ({"layers.0.mlp.weight": torch.ones(1)}, r"1 tensors"),
        ({NORM: torch.ones(512) * 9}, r"layers.3.self_attn: kv_b_proj with no tensors.*allowed: weight"),
        (
            _tensors(weight_packed=torch.ones(1)),
            r"kv_b_proj with weight, weight_packed: it is not known.*before anything",
        ),
        ({**_tensors(), NORM.replace("weight", "bias"): torch.ones(512)}, r"kv_a_layernorm with a bias"),
        (_tensors(weight=torch.ones(80, 512).to(torch.float8_e4m3fn)), r"kv_b_proj.weight of torch.float8_e4m3fn"),
        (
            _tensors(weight_scale=torch.ones(80, 32).to(torch.float8_e4m3fn)),
            r"kv_b_proj.weight_scale of torch.float8_e4m3fn.*another form",
        ),
        (_tensors(weight_scale_inv=torch.ones(1, 1, dtype=torch.int32)), r"weight_scale_inv of torch.int32"),
    ],
)
def test_layers_that_cannot_be_folded_are_refused(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(FoldRefused, match=message):
        LatentFolds().apply(tensors)


def test_a_model_keeps_its_own_record() -> None:
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([_Attention(0.01), _Attention(3.0)])})
    before = {name: tensor.clone() for name, tensor in mla_tensors(model).items()}

    first = fold_model(model)
    assert first == {"layers.0": 7, "layers.1": -1}
    assert fold_model(model) == first
    model["layers"][0].kv_b_proj.load_state_dict({"weight": before["layers.0.kv_b_proj.weight"]})
    assert fold_model(model) == first
    unfold_model(model)
    assert _equal({n: t.detach() for n, t in mla_tensors(model).items()}, {n: t.detach() for n, t in before.items()})


def test_a_model_whose_projection_was_already_split_is_refused() -> None:
    """vLLM's decode would go on with its unfolded copy."""
    model = torch.nn.Sequential(_Attention(0.01))
    model[0].W_UK_T = torch.ones(2)

    with pytest.raises(FoldRefused, match=r"0 with W_UK_T: these copies.*before process_weights_after_loading"):
        fold_model(model)
