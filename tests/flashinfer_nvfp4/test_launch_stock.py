"""Launches of FlashInfer's op, and what is found on a machine; `FakeFlashInfer` stands for the package.

Its op takes exactly what the real one does (16 heads, e4m3 query, contiguous rows, int32 indices, no log-sum-exp) and
computes it in float64. `test_backend_gpu` runs the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from kernel_calls import values_of

from flashinfer_nvfp4 import installed
from flashinfer_nvfp4.codec import encode_rows
from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.launch import decoder_of

SCALE = 256**-0.5
CAPACITY = {8: 14, 6: 20, 5: 28, 4: 36, 3: 46}
"""Clusters at once that the README of FlashInfer's op implies for a GB200: 46 of three blocks."""


class FakeFlashInfer:
    def __init__(self) -> None:
        self.launches: list[tuple[int, int | None]] = []

    def op(self, query: Any, kv_cache: Any, indices: Any, bmm1_scale: float, *, num_ctas_per_token: int | None) -> Any:
        assert query.shape[1:] == (16, 576)
        assert query.dtype == torch.float8_e4m3fn
        assert kv_cache.is_contiguous()
        assert query.is_contiguous()
        assert indices.is_contiguous()
        assert indices.dtype == torch.int32
        self.launches.append((query.shape[0], num_ctas_per_token))
        return attention(query, kv_cache, indices, bmm1_scale)[0].bfloat16()


def attention(query: Any, rows: Any, indices: Any, scale: float) -> tuple[Any, Any]:
    """Float64; -1 is no key, and a token without any has zeros."""
    keys = values_of(rows).double()[indices.long().clamp(min=0)]
    scores = torch.einsum("thd,tkd->thk", query.double(), keys) * scale
    scores = scores.masked_fill((indices < 0)[:, None], -float("inf"))
    return torch.einsum("thk,tkd->thd", scores.softmax(-1).nan_to_num(0.0), keys[..., :512]), scores.logsumexp(-1)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> FakeFlashInfer:
    fake, package, module = FakeFlashInfer(), ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    module.nvfp4_sparse_mla_decode = fake.op  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", module)
    monkeypatch.setattr(installed, "op_capacity", lambda device: CAPACITY)
    return fake


def _case(tokens: int, heads: int, topk: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(heads)
    rows = encode_rows(torch.randn(160, 512), torch.randn(160, 64), "search")
    query = torch.randn(tokens, heads, 576).to(torch.float8_e4m3fn)
    indices = torch.randint(-40, 160, (tokens, topk), dtype=torch.int32).clamp(min=-1)
    return query, rows, indices


@pytest.mark.parametrize(("heads", "groups"), [(8, 1), (16, 1), (32, 2), (64, 4), (128, 8)])
def test_any_number_of_heads_goes_through_the_op_of_sixteen(
    flashinfer: FakeFlashInfer, heads: int, groups: int
) -> None:
    query, rows, indices = _case(3, heads, topk=512)
    out, lse = decoder_of("flashinfer", SCALE, lse=False)(query, rows, indices)
    right, _ = attention(query, rows, indices, SCALE)

    assert lse is None
    assert out.shape == (3, heads, 512)
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), right, atol=2e-2, rtol=8e-3)
    assert [tokens for tokens, _ in flashinfer.launches] == [3 * groups]


@pytest.mark.parametrize(("tokens", "heads", "ctas"), [(46, 16, 3), (47, 16, 5), (64, 16, 4), (12, 64, 5)])
def test_the_op_gets_this_packages_cluster_size(flashinfer: FakeFlashInfer, tokens: int, heads: int, ctas: int) -> None:
    """47 and 64 launches at a top-k of 2048 are where FlashInfer's own plan leaves a second wave nearly empty."""
    query, rows, indices = _case(tokens, heads, topk=2048)
    indices[:] = -1
    decoder_of("flashinfer", SCALE, lse=False)(query, rows, indices)

    assert flashinfer.launches == [(tokens * -(-heads // 16), ctas)]


def test_where_the_op_does_not_tell_its_capacity_it_plans_for_itself(
    flashinfer: FakeFlashInfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "op_capacity", lambda device: None)
    decoder_of("flashinfer", SCALE, lse=False)(*_case(2, 16, topk=512))

    assert flashinfer.launches == [(2, None)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine with nvcc, ninja and Triton, and a package ``flashinfer`` in the folder."""
    folder = tmp_path / "flashinfer"
    folder.mkdir()
    (folder / "__init__.py").touch()
    found = {"flashinfer": True, "triton": True, "ninja": True}

    def find_spec(name: str) -> Any:
        spec = ModuleType("spec")
        spec.origin = str(folder / "__init__.py")  # type: ignore[attr-defined]
        return spec if found.get(name) else None

    monkeypatch.setattr(installed, "find_spec", find_spec)
    monkeypatch.setattr(installed, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(installed, "jit_spec", lambda arch: None)
    installed.facts.cache_clear()
    installed.built.cache_clear()
    yield folder
    installed.facts.cache_clear()
    installed.built.cache_clear()


def _op(folder: Path, *sources: str) -> None:
    csrc = folder / "experimental" / "nvfp4_sparse_mla_decode" / "csrc"
    csrc.parent.mkdir(parents=True, exist_ok=True)
    if sources:
        csrc.mkdir()
    for name in sources:
        (csrc / name).touch()


def test_the_op_counts_only_with_the_kernel_sources_that_wheels_leave_out(machine: Path) -> None:
    assert installed.facts((10, 0)).flashinfer == "this FlashInfer has no nvfp4_sparse_mla_decode"

    installed.facts.cache_clear()
    _op(machine)
    assert "lacks the op's kernel sources" in installed.facts((10, 0)).flashinfer

    installed.facts.cache_clear()
    _op(machine, *installed.OP_SOURCES)
    assert installed.facts((10, 0)) == installed.Installed()


def test_without_a_compiler_nothing_is_built(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nvcc() -> str:
        raise BuildRefused("nvcc=None", "there is no CUDA compiler on this machine", "nvcc 13", "Install it")

    _op(machine, *installed.OP_SOURCES)
    monkeypatch.setattr(installed, "find_nvcc", find_nvcc)
    found = installed.facts((10, 0))

    assert "no CUDA compiler" in found.cuda
    assert "no CUDA compiler" in found.flashinfer
    assert not found.triton


def test_a_device_without_compiled_kernels_has_its_reason(machine: Path) -> None:
    assert "compute capability 12.1" in installed.facts((12, 1)).cuda


def test_a_build_that_fails_is_logged_and_the_next_kernel_is_taken(
    machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(arch: Any) -> Any:
        raise RuntimeError("nvcc fatal: unsupported gpu architecture")

    monkeypatch.setattr(installed, "load", load)
    monkeypatch.setattr(installed, "missing", lambda: "")
    found = installed.built((10, 0))

    assert found.cuda == "its build failed (RuntimeError, see the log)"
    assert "unsupported gpu architecture" in caplog.text
