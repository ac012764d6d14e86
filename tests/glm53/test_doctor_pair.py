"""``glm53 doctor --pair``: two reports compared, every disagreement with both values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_site import bundle_entries, serving_host, serving_site
from recipe_files import deployment
from typer.testing import CliRunner

from glm53.cli import app
from glm53.doctor.finding import CODES
from glm53.doctor.needs import Needs
from glm53.doctor.pair import compare
from glm53.doctor.report import diagnose

runner = CliRunner()


def _report(folder: Path, role: Any = "prefill", change: Any = None, **given: Any) -> dict[str, Any]:
    """A report as it comes out of a file. given: environment, host, recipe."""
    site = serving_site(folder / role)
    if change is not None:
        change(site)
    recipe = given.get("recipe", {})
    needs = Needs(deployment(**recipe), role) if recipe is not None else None
    report = diagnose(site.read(), given.get("environment", {}), serving_host(**given.get("host", {})), needs)
    data: dict[str, Any] = json.loads(json.dumps(report.as_dict()))
    return data


def test_prefill_and_decode_of_one_recipe_and_one_image_agree(tmp_path: Path) -> None:
    assert compare(_report(tmp_path), _report(tmp_path, "decode", host={"name": "node-b"})) == []


@pytest.mark.parametrize(
    ("code", "field", "given", "both"),
    [
        ("pair-version", "nixl", {"change": lambda site: site.add("nixl", "1.5.1")}, ("1.4.1", "1.5.1")),
        ("pair-version", "vllm", {"change": lambda site: site.remove("vllm")}, ("0.31.0", "none")),
        (
            "pair-plugin",
            "vllm_blhnc.peer_facts: nvfp4_rows",
            {"change": lambda site: site.add("glm53-blackwell", "0.1.0", (), _without_peer_fact())},
            ("node-a", "node-b"),
        ),
        ("pair-setting", "FLASHINFER_NVFP4_FOLD", {"environment": {"FLASHINFER_NVFP4_FOLD": "off"}}, ("on", "off")),
        (
            "pair-setting",
            "FLASHINFER_NVFP4_POLICY",
            {"environment": {"FLASHINFER_NVFP4_POLICY": "rtn"}},
            ("search", "rtn"),
        ),
        (
            "pair-setting",
            "VLLM_KV_CACHE_LAYOUT",
            {"environment": {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}},
            ("unset", "BLHNC"),
        ),
        ("pair-recipe", "engine.dtype", {"recipe": {"engine": {"dtype": "float16"}}}, ("bfloat16", "float16")),
        (
            "pair-recipe",
            "engine.kv_cache_dtype",
            {"recipe": {"engine": {"kv_cache_dtype": "fp8_ds_mla", "attention_backend": "FLASHMLA_SPARSE"}}},
            ("fp8", "fp8_ds_mla"),
        ),
        (
            "pair-recipe",
            "engine.attention_backend",
            {"recipe": {"engine": {"kv_cache_dtype": "fp8_ds_mla", "attention_backend": "FLASHMLA_SPARSE"}}},
            ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE"),
        ),
        ("pair-recipe", "kv_transfer.layout", {"recipe": {"kv_transfer": {"layout": "stock"}}}, ("BLHNC", "stock")),
        ("pair-recipe", "engine.mtp_depth", {"recipe": {"engine": {"mtp_depth": 3}}}, ("0", "3")),
        ("pair-recipe", "model.revision", {"recipe": {"model": {"revision": "c" * 40}}}, ("None", "c" * 40)),
        ("pair-recipe-absent", "recipe", {"recipe": None}, ("node-b",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_disagreement_is_named_with_both_values(
    code: str, field: str, given: dict[str, Any], both: tuple[str, ...], tmp_path: Path
) -> None:
    other = _report(tmp_path, "decode", host={"name": "node-b"}, **given)
    found = {(one.code, one.field): one for one in compare(_report(tmp_path), other)}

    assert (code, field) in found
    one = found[code, field]
    assert [value for value in both if value not in one.message] == []
    assert one.level == "error"
    assert one.fix


def _without_peer_fact() -> list[tuple[str, str]]:
    return [entry for entry in bundle_entries() if entry[1] != "nvfp4_rows"]


def test_hash_seeds_that_differ_are_named(tmp_path: Path) -> None:
    seeds = [{"environment": {"PYTHONHASHSEED": seed}, "recipe": None} for seed in ("0", "7")]
    (one,) = compare(*(_report(tmp_path, **seed) for seed in seeds))

    assert (one.code, one.field) == ("pair-setting", "PYTHONHASHSEED")
    assert "'0'" in one.message
    assert "'7'" in one.message
    assert one.commands == (("export", "PYTHONHASHSEED=0"),)


def test_a_value_that_is_written_out_equals_the_same_default(tmp_path: Path) -> None:
    written = _report(tmp_path, environment={"FLASHINFER_NVFP4_FOLD": "on", "VLLM_CPU_DSA": "0"}, recipe=None)

    assert compare(_report(tmp_path, recipe=None), written) == []


def test_what_may_differ_is_a_note(tmp_path: Path) -> None:
    given: dict[str, Any] = {"host": {"python": "3.11.9"}, "environment": {"FLASHINFER_NVFP4_PREFILL_MIB": "0"}}
    found = compare(_report(tmp_path, recipe=None), _report(tmp_path, recipe=None, **given))

    assert {(one.code, one.field, one.level) for one in found} == {
        ("pair-python", "python", "note"),
        ("pair-setting", "FLASHINFER_NVFP4_PREFILL_MIB", "note"),
    }


def _write(path: Path, report: object) -> str:
    path.write_text(json.dumps(report))
    return str(path)


def test_the_command_line_compares_files(tmp_path: Path) -> None:
    a = _write(tmp_path / "a b.json", _report(tmp_path))
    same = _write(tmp_path / "same.json", _report(tmp_path, "decode"))
    other = _write(tmp_path / "c.json", _report(tmp_path, change=lambda site: site.add("nixl", "1.5.1")))

    assert runner.invoke(app, ["doctor", "--pair", a, same]).exit_code == 0
    result = runner.invoke(app, ["doctor", "--pair", a, other, "--json"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert [one["code"] for one in data["findings"]] == ["pair-version"]
    assert data["reports"] == [a, other]
    fixes = runner.invoke(app, ["doctor", "--pair", a, other, "--fix"])
    assert fixes.stdout.splitlines() == ["# pair-version: nixl", "python -m pip install --no-deps nixl==1.4.1"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[]", "is no report"),
        ('{"findings": []}', "is no report"),
        ('{"kind": "glm53-doctor", "schema": 2}', "schema=2"),
        ('{"kind": "glm53-doctor", "schema": 1}', "host is missing"),
        (
            '{"kind": "glm53-doctor", "schema": 1, "host": {}, "versions": {}, "entry_points": [], "variables": {}, '
            '"recipe": {}}',
            "recipe.agreed is missing",
        ),
    ],
)
def test_a_file_that_is_no_report_is_two(content: str | None, why: str, tmp_path: Path) -> None:
    good = _write(tmp_path / "good.json", _report(tmp_path))
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    result = runner.invoke(app, ["doctor", "--pair", good, str(bad)])

    assert result.exit_code == 2
    assert why in result.stderr


def test_every_code_about_two_hosts_is_tripped_above() -> None:
    assert {code for code in CODES if code.startswith("pair-")} == {
        *("pair-version", "pair-plugin", "pair-setting", "pair-recipe", "pair-recipe-absent", "pair-python")
    }
