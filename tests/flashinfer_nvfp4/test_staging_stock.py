"""Staged prefill in vLLM: what its metadata tell, the class that its layers call, and where nothing is staged."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

import attention_calls
import kernel_calls
import staging_calls
import torch
from kernel_calls import read, written
from prefill_checks import HEADS, MOST_ERROR, Batch, norm_errors
from refused_rows import says

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.prefill_plan import Request
from flashinfer_nvfp4.staging import ROWS, plan_staging, requests_of
from flashinfer_nvfp4.workspace import SETTING, Layout

TRITON = Path(__file__).parents[2] / ".venv" / "triton"


@pytest.mark.skipif(not TRITON.is_dir(), reason=f"needs Triton in {TRITON}: make test")
def test_a_batch_decodes_where_rows_lie_and_prefills_from_stages() -> None:
    """Two decoding requests, then one in three parts, one in one, and one that is direct, against float64: e4m3 rows
    for what is staged, and exact ones for the others."""
    sizes = [Request(1, 70), Request(1, 9), Request(9, 300), Request(5, 90), Request(1, 1250)]
    batch = Batch(requests=sizes, topk=128)
    batch.positions[1, :9] = torch.arange(9, dtype=torch.int32)
    layout = Layout(128, HEADS, ROWS, 192, 4)
    case = {
        "batch": vars(batch),
        "query": batch.query,
        "decodes": 2,
        "rows": [each.rows for each in sizes],
        "layout": layout,
        "contexts": True,
    }
    with kernel_calls.interpreter() as run:
        run(attention_calls.start, "search", str(TRITON))
        out, lse, stages, launches = read(run(staging_calls.prefill, written(case)))

    assert lse is None
    assert stages == [*3 * [(0, 3, 100), (1, 3, 100), (2, 3, 100)], (0, 1, 90)]  # four, four and one token
    assert launches == 3 * 3 + 2 + 1
    staged = batch.owners.clamp(2, 3) == batch.owners
    right = torch.where(staged[:, None, None], batch.reference(torch.float8_e4m3fn), batch.reference())
    assert norm_errors(out, right) < MOST_ERROR


def _metadata(lengths: Any, contexts: Any, prefill: bool = True) -> Any:
    chunked = None if contexts is None else SimpleNamespace(context_lens_list=contexts)
    lengths = None if lengths is None else torch.tensor(lengths)
    return SimpleNamespace(
        prefill=SimpleNamespace(query_lens_cpu=lengths, chunked_context=chunked) if prefill else None
    )


def test_requests_are_what_the_host_knows_of_a_batch() -> None:
    """A request's rows are its context and its new tokens; without lengths on the host nothing can be planned."""
    assert requests_of(_metadata([3, 5], [0, 100])) == [Request(3, 3), Request(5, 105)]
    assert requests_of(_metadata([3, 5], None)) == [Request(3, 3), Request(5, 5)]
    assert requests_of(_metadata(None, None)) is None
    assert requests_of(_metadata(None, None, prefill=False)) is None


@pytest.fixture
def trtllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake: a FlashInfer that has the kernel."""
    package, module = ModuleType("flashinfer"), ModuleType("flashinfer.decode")
    module.trtllm_batch_decode_with_kv_cache_mla = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.decode", module)
    monkeypatch.delenv(SETTING, raising=False)


def test_glm_stages_186_thousand_rows_in_a_twentieth_of_three_gigabytes(trtllm: None) -> None:
    """By hand: 512 tokens of 8196 bytes of lists and 16 times 1728 + 1024 + 2052 of query, output and log-sum-exp."""
    layout, why = plan_staging((10, 0), 16, 2048, 1)

    assert layout is not None
    assert layout.pass_tokens == 512
    assert layout.capacity == (150_994_944 - 512 * (8196 + 16 * 4804)) // (64 * 576) * 64
    assert layout.total_bytes <= 150_994_944
    assert why == f"{layout.capacity} rows in 143 MiB"


@pytest.mark.parametrize(
    ("capability", "shards", "mib", "why"),
    [
        ((9, 0), 1, None, r"TRTLLM-gen needs compute capability 10.x, not 9.0"),
        ((12, 0), 1, None, r"not 12.0"),
        ((10, 3), 2, None, r"2 workers share each context"),
        ((10, 3), 1, "0", r"FLASHINFER_NVFP4_PREFILL_MIB=0"),
    ],
)
def test_prefill_is_direct_and_says_why(
    trtllm: None, monkeypatch: pytest.MonkeyPatch, capability: Any, shards: int, mib: str | None, why: str
) -> None:
    if mib is not None:
        monkeypatch.setenv(SETTING, mib)
    layout, told = plan_staging(capability, 16, 2048, shards)

    assert layout is None
    assert why in told


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="FlashInfer is installed here")
def test_without_flashinfer_prefill_is_direct() -> None:
    layout, why = plan_staging((10, 0), 16, 2048, 1)

    assert layout is None
    assert "flashinfer.decode cannot be imported" in why


def test_a_workspace_that_holds_nothing_stops_the_start_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "10")
    with pytest.raises(LaunchRefused, match=r"10485760 bytes.*512 tokens with 16 heads.*43 MiB") as refused:
        plan_staging((9, 0), 16, 2048, 1)
    says("nvfp4-workspace", str(refused.value))
    from flashinfer_nvfp4.errors import SettingRefused  # here, as the module that is staged has none

    monkeypatch.setenv(SETTING, "ten")
    with pytest.raises(SettingRefused, match="ten"):
        plan_staging((9, 0), 16, 2048, 1)
