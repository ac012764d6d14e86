"""A row format that another package brings works end to end, by its entry point alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

from dsa_engine import generate, prompt

# Each row as its bfloat16 bytes, so that a bfloat16 model must answer as with plain rows, to the last bit, and
# then four bytes of its own, so that a row is no whole number of anything else's rows.
PACKAGE = """
import torch


class Bytes:
    name = "bytes"
    cache_dtypes = ("fp8_ds_mla", "fp8_e5m2")
    row_bytes = 2 * 576 + 4

    def encode(self, latent, rope):
        row = torch.cat((latent, rope), dim=-1).to(torch.bfloat16).view(torch.uint8)
        return torch.cat((row, torch.full((len(row), 4), 0xA5, dtype=torch.uint8)), dim=-1)

    def decode(self, rows):
        assert (rows[:, -4:] == 0xA5).all(), "a row that was never written"
        values = rows[:, :-4].contiguous().view(torch.bfloat16)
        return values[:, :512], values[:, 512:]
"""

PROMPTS = [prompt(50, 1), prompt(300, 2)]


@pytest.fixture(scope="module")
def model(folder: Any) -> Path:
    return folder()


@pytest.fixture(scope="module")
def plain(run: Callable[..., Any], model: Path) -> Any:
    return run(generate, model, PROMPTS, tokens=16, dtype="bfloat16")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a package that declares the format, as pip would have installed it."""
    site = tmp_path_factory.mktemp("site")
    (site / "rowbytes.py").write_text(PACKAGE)
    info = site / "rowbytes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rowbytes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm_cpu_dsa.row_formats]\nbytes = rowbytes:Bytes\n")
    return str(site)


@pytest.mark.parametrize("cache_dtype", ["fp8_ds_mla", "fp8_e5m2"])
@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
def test_a_third_partys_rows_answer_exactly_as_plain_rows_of_the_same_values(
    run: Callable[..., Any], package: str, model: Path, plain: Any, cache_dtype: str, layout: str
) -> None:
    """``fp8_e5m2`` is a name whose cache vLLM hands over as FP8, ``fp8_ds_mla`` one that it leaves as bytes."""
    found = run(
        generate,
        model,
        PROMPTS,
        site=package,
        tokens=16,
        rounds=2,
        dtype="bfloat16",
        kv_cache_dtype=cache_dtype,
        environ={"VLLM_KV_CACHE_LAYOUT": layout},
    )

    assert [[a.tokens for a in answers] for answers in found.rounds] == [plain.tokens] * 2
    assert [a.cached for a in found.rounds[1]] == [0, 256]
    logprobs = [value for answer in found.answers for value in answer.logprobs]
    assert logprobs == [v for a in plain.answers for v in a.logprobs]
    page, indexer_page = 64 * 1156, 64 * 132
    block_row = -(-(4 * page + 3 * indexer_page) // 1156) * 1156
    for name, strides in found.strides.items():
        expected = block_row if layout == "BLHNC" else indexer_page if "indexer" in name else page
        assert strides[0] == expected, name


def test_without_the_package_the_dtype_is_refused_at_start_up(run: Callable[..., Any], model: Path) -> None:
    with pytest.raises(Exception, match=r"--kv-cache-dtype fp8_ds_mla: no installed row format.*auto \(plain\)"):
        run(generate, model, PROMPTS, kv_cache_dtype="fp8_ds_mla")
