"""Random weights: a real checkpoint, drawn so that a wrong attention changes the answer."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53.model import Shape
from glm53.model.tokens import VOCABULARY

np = pytest.importorskip("numpy", reason="needs numpy: pip install '.[demo]'")
safetensors = pytest.importorskip("safetensors", reason="needs safetensors: pip install '.[demo]'")

from glm53.model.weights import Tensor, tensors, values, write  # noqa: E402


@pytest.mark.parametrize("architecture", ["glm_moe_dsa", "deepseek_v32"])
@pytest.mark.parametrize("mtp", [False, True])
def test_the_safetensors_library_reads_every_tensor_as_drawn(tmp_path: Path, architecture: str, mtp: bool) -> None:
    shape = Shape(architecture=architecture, mtp=mtp, hidden=64, experts=2)
    write(shape, tmp_path / "model.safetensors")
    planned = {tensor.name: tensor for tensor in tensors(shape)}

    with safetensors.safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(planned)
        for name, tensor in planned.items():
            stored = file.get_tensor(name)
            assert (stored.shape, stored.dtype) == (tensor.dims, np.float32)
            assert np.array_equal(stored, values(tensor, shape.seed))


def test_names_are_not_repeated() -> None:
    names = [tensor.name for tensor in tensors(Shape(layers=7, mtp=True))]

    assert len(names) == len(set(names))


def test_only_layers_that_run_an_indexer_have_its_weights() -> None:
    names = {tensor.name for tensor in tensors(Shape(layers=7))}
    indexed = {layer for layer in range(7) if f"model.layers.{layer}.self_attn.indexer.wk.weight" in names}

    assert indexed == {0, 1, 2, 6}
    assert not any("layers.3.self_attn.indexer" in name for name in names)


@given(seed=st.integers(0, 2**64), columns=st.sampled_from([64, 128, 512]))
def test_matrices_have_the_stated_spread(seed: int, columns: int) -> None:
    drawn = values(Tensor("x.weight", (512, columns)), seed)
    expected = 1.6 / sqrt(columns)

    # Six standard errors of the mean and of the deviation of so many independent numbers.
    assert abs(drawn.mean()) < 6 * expected / sqrt(drawn.size)
    assert abs(drawn.std() / expected - 1) < 6 / sqrt(2 * drawn.size)


def test_norms_vary_around_one_and_biases_around_zero() -> None:
    norm, bias = values(Tensor("n", (4096,), "norm"), 0), values(Tensor("b", (4096,), "bias"), 0)

    assert abs(norm.mean() - 1) < 0.01 < 0.09 < norm.std() < 0.11
    assert abs(bias.mean()) < 0.005 < 0.045 < bias.std() < 0.055


def test_values_follow_from_the_raw_integers_of_pcg64() -> None:
    """Eight 16-bit integers, summed and scaled to deviation 1; computed here with Python's own integers."""
    import zlib

    raw = np.random.PCG64([7, zlib.crc32(b"some.weight")]).random_raw(2 * 3)
    variance = 8 * (65536**2 - 1) / 12
    expected = []
    for first, second in zip(raw[0::2], raw[1::2], strict=True):
        words = [int(word) >> shift & 0xFFFF for word in (first, second) for shift in (0, 16, 32, 48)]
        expected.append((sum(words) - 8 * 65535 / 2) / sqrt(variance) * 0.05)

    np.testing.assert_allclose(values(Tensor("some.weight", (3,), "bias"), 7), expected, rtol=1e-6)


def test_a_deeper_model_repeats_the_layers_of_a_shallower_one() -> None:
    shallow = {tensor.name: tensor for tensor in tensors(Shape(layers=2))}
    deep = {tensor.name: tensor for tensor in tensors(Shape(layers=5))}

    assert set(shallow) <= set(deep)
    assert all(deep[name] == tensor for name, tensor in shallow.items())


def test_the_prediction_layer_repeats_the_embedding_and_the_head() -> None:
    drawn = {tensor.name: values(tensor, 0) for tensor in tensors(Shape(layers=1, mtp=True))}

    assert np.array_equal(drawn["model.layers.1.embed_tokens.weight"], drawn["model.embed_tokens.weight"])
    assert np.array_equal(drawn["model.layers.1.shared_head.head.weight"], drawn["lm_head.weight"])


def test_the_head_prefers_readable_text_and_never_white_space() -> None:
    """Grammars of tool calls allow white space without end, so a model that likes it would not end a call."""
    head = values(Tensor("lm_head.weight", (len(VOCABULARY), 128)), 0)
    spread = head.std(axis=1)
    readable = [ord(c) for c in "!azAZ09~"]

    assert not head[[ord(c) for c in " \n\t\r\f\v"]].any()
    assert spread[readable].min() > 2 * spread[[0, 27, 127, 200, 255, 256, 277, 291]].max()
