"""The demo's bytes of a token: those that moved beside those of each cache dtype."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glm53.demo.cache import cache_figures
from glm53.demo.show import _cache
from glm53.deployment import parse
from glm53.model.folder import make


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 MLA caches and 3 indexer caches of 132 bytes a token."""
    path = tmp_path_factory.mktemp("cache") / "model"
    make(path, layers=4, seed=0)
    return path


def _figures(model: Path, transfers: list[dict[str, Any]], **engine: Any) -> dict[str, Any]:
    raw = {"name": "a", "model": {"path": str(model), "served_name": "a"}, "workers": {"prefill": 1, "decode": 1}}
    return cache_figures(parse(raw | {"engine": engine}), transfers)


ROWS = {"bf16": 1152, "fp8": 576, "nvfp4_ds_mla": 352, "float32": 2304}


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ({}, "bf16"),
        ({"dtype": "float16"}, "bf16"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float32", "kv_cache_dtype": "fp8"}, "fp8"),
        ({"dtype": "float32", "kv_cache_dtype": "nvfp4_ds_mla"}, "nvfp4_ds_mla"),
    ],
)
def test_the_run_is_beside_bf16_fp8_and_nvfp4(model: Path, engine: dict[str, Any], dtype: str) -> None:
    moved = [{"blocks": 3, "nbytes": 3 * 64 * 2000}, {"blocks": 1, "nbytes": 64 * 1000}]

    found = _figures(model, moved, **engine)

    assert found["dtype"] == dtype
    assert found["bytes_per_token"] == 1750
    assert next(iter(found["planned_bytes_per_token"])) == dtype
    # Blocks of 64 tokens, rounded up to whole MLA rows.
    assert found["planned_bytes_per_token"] == {
        name: -(-(64 * (4 * ROWS[name] + 3 * 132)) // ROWS[name]) * ROWS[name] / 64
        for name in {dtype, "bf16", "fp8", "nvfp4_ds_mla"}
    }


def test_the_table_shows_the_ratio_and_what_this_run_moved(model: Path) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(_cache(_figures(model, [{"blocks": 1, "nbytes": 64 * 1804}], kv_cache_dtype="nvfp4_ds_mla")))
    lines = [line for line in console.export_text().splitlines() if "nvfp4" in line or "fp8" in line]

    assert [line.replace("│", " ").split() for line in lines] == [
        ["nvfp4_ds_mla", "1,804", "0.36", "1,804", "by", "this", "run"],
        ["fp8", "2,700", "0.54"],
    ]


def test_without_a_transfer_nothing_was_moved(model: Path) -> None:
    figures = _figures(model, [])

    assert figures["bytes_per_token"] is None
    assert _cache(figures).row_count == 3
