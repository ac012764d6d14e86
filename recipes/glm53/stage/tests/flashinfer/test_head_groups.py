from types import SimpleNamespace

import pytest
import torch
from flashinfer.experimental.nvfp4_sparse_mla_decode import backend

CAPACITY = {8: 16, 6: 22, 5: 28, 4: 36, 3: 46}


@pytest.fixture
def launches(monkeypatch):
    """The kernel's arithmetic in torch, on plain rows; what it was launched with."""
    seen = []

    def kernel(rows, query, indices, out, ctas, qk_scale, out_scale):
        seen.append((tuple(query.shape), ctas))
        for token, picked in enumerate(indices):
            keys = rows[picked[picked >= 0].long()]
            weight = (query[token] @ keys.T * (qk_scale / backend.LOG2E)).softmax(-1)
            out[token] = (weight @ keys[:, :512] * out_scale).to(out.dtype)

    def checked(query, kv_cache, indices, out):
        assert query.shape[1:] == (16, 576)
        assert indices.shape[0] == query.shape[0]
        assert query.is_contiguous()

    monkeypatch.setattr(backend, "_check_inputs", checked)
    monkeypatch.setattr(backend, "_capacity", lambda device: CAPACITY)
    monkeypatch.setattr(backend, "device_arch", lambda device: "sm_100a")
    monkeypatch.setattr(backend, "get_module", lambda arch: SimpleNamespace(run=kernel))
    return seen


def batch(heads, tokens=5):
    generator = torch.Generator().manual_seed(heads)
    rows = torch.randn(400, 576, generator=generator)
    indices = torch.full((tokens, 512), -1, dtype=torch.int32)
    for token in range(tokens):
        indices[token, : 40 + token] = torch.randperm(400, generator=generator)[: 40 + token]
    return torch.randn(tokens, heads, 576, generator=generator), rows, indices


def decoded(query, rows, indices, **more):
    given = {"bmm1_scale": 0.1, "bmm2_scale": 0.5, "out": None, "num_ctas_per_token": None, **more}
    return backend.run(query, rows, indices, **given)


@pytest.mark.parametrize("heads", [1, 8, 16, 20, 32, 64, 128])
def test_each_head_gets_what_it_gets_alone(heads, launches):
    query, rows, indices = batch(heads)
    out = decoded(query, rows, indices)
    assert out.shape == (5, heads, 512)
    assert out.is_contiguous()
    groups = -(-heads // 16)
    assert launches == [((5 * groups, 16, 576), backend.select_num_ctas(5 * groups, 512, CAPACITY))]
    for head in range(heads):
        alone = torch.zeros(5, 16, 576)
        alone[:, 0] = query[:, head]
        expected = decoded(alone, rows, indices)[:, 0]
        torch.testing.assert_close(out[:, head].float(), expected.float(), rtol=1e-2, atol=1e-3)


def test_no_tokens_are_no_launch(launches):
    query, rows, indices = batch(32, tokens=0)
    assert decoded(query, rows, indices).shape == (0, 32, 512)
    assert launches == []


def test_an_output_that_is_passed_in_is_filled_and_one_of_another_shape_refused(launches):
    query, rows, indices = batch(32)
    out = torch.empty(5, 32, 512, dtype=torch.bfloat16)
    assert decoded(query, rows, indices, out=out) is out
    assert torch.equal(out, decoded(query, rows, indices))
    with pytest.raises(ValueError, match=r"out must be \[5, 32, 512\]"):
        decoded(query, rows, indices, out=torch.empty(5, 16, 512, dtype=torch.bfloat16))
