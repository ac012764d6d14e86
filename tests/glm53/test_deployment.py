"""Deployment files: what they mean, and every way in which one is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from glm53.deployment import CPU_CACHE_DTYPES, Deployment, DeploymentError, load, parse

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def _raw(**overrides: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": "small",
        "model": {"path": "model", "served_name": "tiny"},
        "workers": {"prefill": 1, "decode": 1},
    }
    return raw | overrides


def _findings(raw: Any) -> set[tuple[str, str]]:
    with pytest.raises(DeploymentError) as caught:
        parse(raw)
    return {(finding.code, finding.field) for finding in caught.value.findings}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_shipped_recipe_loads(path: Path) -> None:
    deployment = load(path)

    assert deployment.name == path.stem


def test_sizes_are_read_with_units() -> None:
    deployment = parse(_raw(engine={"kv_cache": "1GiB"}))

    assert deployment.engine.kv_cache == 1 << 30


@pytest.mark.parametrize(
    ("raw", "code", "field"),
    [
        (_raw(enigne={}), "unknown-key", "enigne"),
        (_raw(engine={"blocksize": 64}), "unknown-key", "engine.blocksize"),
        ({"name": "small"}, "missing-key", "model"),
        (_raw(engine={"block_size": 100}), "block-size", "engine.block_size"),
        (_raw(engine={"block_size": 0}), "bad-value", "engine.block_size"),
        (_raw(engine={"dtype": "float8"}), "bad-value", "engine.dtype"),
        (_raw(engine={"max_batched_tokens": 4}), "batch", "engine.max_batched_tokens"),
        (_raw(engine={"kv_cache_dtype": "int8"}), "bad-value", "engine.kv_cache_dtype"),
        (_raw(engine={"kv_cache_dtype": "fp8_ds_mla"}), "cache-dtype", "engine.kv_cache_dtype"),
        (_raw(engine={"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_policy": "best"}), "bad-value", "engine.nvfp4_policy"),
        (_raw(engine={"kv_cache_dtype": "fp8", "nvfp4_policy": "rtn"}), "policy-without-nvfp4", "engine.nvfp4_policy"),
        (_raw(kv_transfer={"layout": "NHD"}), "bad-value", "kv_transfer.layout"),
        (_raw(kv_transfer={"nixl_progress_delay_us": -1}), "bad-value", "kv_transfer.nixl_progress_delay_us"),
        (_raw(kv_transfer={"block_allocation": "run"}), "bad-value", "kv_transfer.block_allocation"),
        (_raw(kv_transfer={"eviction_window": 8}), "window-without-runs", "kv_transfer.eviction_window"),
        (_raw(name="Not A Name"), "bad-value", "name"),
        (_raw(workers={}), "no-workers", "workers"),
        (_raw(workers={"prefill": 1}), "half-disaggregated", "workers"),
        (_raw(workers={"decode": 2}), "half-disaggregated", "workers"),
        (_raw(workers={"prefill": 1, "decode": 1, "aggregated": 1}), "mixed-roles", "workers.aggregated"),
        (_raw(router="random"), "bad-value", "router"),
        ([], "not-a-mapping", "file"),
        (None, "not-a-mapping", "file"),
    ],
)
def test_refuses_what_cannot_be_launched(raw: Any, code: str, field: str) -> None:
    assert (code, field) in _findings(raw)


@pytest.mark.parametrize("dtype", CPU_CACHE_DTYPES)
def test_every_cache_dtype_of_the_cpu_is_accepted(dtype: str) -> None:
    assert parse(_raw(engine={"kv_cache_dtype": dtype})).engine.kv_cache_dtype == dtype


def test_reports_all_findings_at_once() -> None:
    raw = _raw(engine={"block_size": 100, "max_batched_tokens": 2}, workers={"prefill": 3})

    assert {code for code, _ in _findings(raw)} == {"block-size", "batch", "half-disaggregated"}


def test_a_finding_names_value_reason_and_fix() -> None:
    with pytest.raises(DeploymentError, match=r"engine\.block_size: 100 tokens .* Use 64 or a multiple of it"):
        parse(_raw(engine={"block_size": 100}))


@pytest.mark.parametrize(
    ("text", "code"),
    [("a: [", "not-yaml"), ("[" * 3000, "not-yaml"), (b"\xff\xfe\x00", "not-yaml"), (None, "unreadable")],
)
def test_refuses_files_that_cannot_be_read(tmp_path: Path, text: str | bytes | None, code: str) -> None:
    path = tmp_path / "deployment.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DeploymentError) as caught:
        load(path)

    assert [finding.code for finding in caught.value.findings] == [code]
    assert str(path) in str(caught.value)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").touch()
    with pytest.raises(DeploymentError, match="it is empty"):
        load(tmp_path / "deployment.yaml")


def test_a_deployment_survives_writing_and_reading() -> None:
    deployment = load(RECIPES[0])
    text = yaml.safe_dump(deployment.model_dump(mode="json"))

    assert parse(yaml.safe_load(text)) == deployment


def test_variants_change_only_what_they_say() -> None:
    deployment = parse(_raw())

    stock = deployment.with_layout("stock")
    assert (deployment.kv_transfer.layout, stock.kv_transfer.layout) == ("BLHNC", "stock")
    assert stock.with_layout("BLHNC") == deployment

    aggregate = deployment.aggregate()
    assert (aggregate.disaggregated, aggregate.workers.aggregated) == (False, 1)
    assert aggregate.engine == deployment.engine
    assert aggregate.findings() == []


def test_the_default_layout_comes_with_vllms_own_block_allocation() -> None:
    runs = parse(_raw(kv_transfer={"block_allocation": "runs", "eviction_window": 8}))

    stock = runs.with_layout("stock").kv_transfer

    assert (stock.block_allocation, stock.eviction_window) == ("stock", 0)
    assert runs.with_layout("BLHNC") == runs


def test_values_cannot_be_changed_after_loading() -> None:
    deployment = parse(_raw())
    with pytest.raises(ValueError, match="frozen"):
        deployment.engine.block_size = 128

    assert isinstance(deployment, Deployment)
