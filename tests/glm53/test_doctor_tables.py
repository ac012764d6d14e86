"""The doctor's tables say what the plugins, the support matrix and the documentation say."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from glm53.deployment.facts import RELEASES
from glm53.doctor.finding import CODES
from glm53.doctor.lines import LINES, SUPPORTED
from glm53.doctor.packages import MOONCAKE, OP_SOURCES
from glm53.doctor.plugins import PLUGINS
from glm53.doctor.variables import OTHERS, VARIABLES
from stockpatch.versions import Window

ROOT = Path(__file__).parents[2]
PLUGIN = {plugin.name: plugin for plugin in PLUGINS}


def _same(mine: Window, theirs: Window) -> bool:
    return (set(mine.distributions), mine.specifier) == (set(theirs.distributions), theirs.specifier)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("vllm_blhnc", ("stock:VLLM", "stock:NIXL")),
        ("flashinfer_nvfp4", ("stock:VLLM",)),
        ("dynamo_structural_tags", ("stock:VLLM", "stock:DYNAMO")),
        ("mooncake_tier", ("stock:MOONCAKE", "vllm_stock:VLLM")),
        ("rl_capture", ("stock:VLLM", "stock:DYNAMO")),
        ("vllm_cpu_dsa", ("patches:VLLM",)),
    ],
)
def test_windows_are_the_plugins_own(name: str, windows: tuple[str, ...]) -> None:
    plugin = PLUGIN[name]
    mine = [*plugin.windows, *plugin.optional]
    theirs = []
    for window in windows:
        module, _, attribute = window.partition(":")
        theirs.append(getattr(importlib.import_module(f"{name}.{module}"), attribute))

    assert len(mine) == len(theirs)
    assert all(_same(*pair) for pair in zip(mine, theirs, strict=True))


def test_entry_points_are_those_that_the_bundle_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        (group, name)
        for group, names in project["entry-points"].items()
        for name in names
        if group != "vllm_cpu_dsa.row_formats"
    }

    assert {entry for plugin in PLUGINS for entry in plugin.entries} == declared


def test_every_plugin_is_known_and_those_with_patches_are_marked() -> None:
    folders = {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")} - {"stockpatch"}
    patched = {path.parent.name for path in (ROOT / "plugins").glob("*/patches.py")}

    assert set(PLUGIN) == folders
    assert {plugin.name for plugin in PLUGINS if plugin.patched} == patched


def test_variables_are_the_plugins_own() -> None:
    tags = importlib.import_module("dynamo_structural_tags.settings")
    nvfp4 = importlib.import_module("flashinfer_nvfp4.settings")
    policy = importlib.import_module("flashinfer_nvfp4.policy")
    workspace = importlib.import_module("flashinfer_nvfp4.workspace")
    capture = importlib.import_module("rl_capture.settings")

    known = {
        *tags.VARIABLES,
        nvfp4.BACKEND,
        nvfp4.FOLD,
        policy.SETTING,
        workspace.SETTING,
        "VLLM_CPU_DSA",
        capture.PREFIX,
    }
    assert set(VARIABLES) == known
    for name, (_, values, default) in tags.VARIABLES.items():
        allowed = VARIABLES[name].allowed
        assert VARIABLES[name].default == default
        assert not allowed or ", ".join(allowed) == values
    _, values, default = capture.VARIABLES[capture.PREFIX]
    assert (", ".join(VARIABLES[capture.PREFIX].allowed), VARIABLES[capture.PREFIX].default) == (values, default)
    assert VARIABLES[nvfp4.BACKEND].allowed == ("auto", "off", *nvfp4.KERNELS)
    assert VARIABLES[policy.SETTING].allowed == policy.POLICIES
    assert VARIABLES[policy.SETTING].default == policy.DEFAULT
    assert VARIABLES[workspace.SETTING].default == str(workspace.PREFILL_WORKSPACE_BYTES >> 20)
    assert VARIABLES[workspace.SETTING].most == workspace.MOST_MIB


@pytest.mark.parametrize("value", ["", "0", "1", "2", "-1", "1048576", "1048577", "0.5", "600", "601", "x"])
def test_numbers_are_taken_as_the_plugins_take_them(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = importlib.import_module("dynamo_structural_tags.settings")
    workspace = importlib.import_module("flashinfer_nvfp4.workspace")

    for name in ("DYNAMO_STRUCTURAL_TAGS_CACHE", "DYNAMO_STRUCTURAL_TAGS_COMPILE_SECONDS"):
        assert VARIABLES[name].takes(value) == _accepted(lambda name=name: tags.Settings.read({name: value})), name
    monkeypatch.setenv(workspace.SETTING, value)
    assert VARIABLES[workspace.SETTING].takes(value) == _accepted(workspace.chosen_workspace)


def _accepted(read: object) -> bool:
    assert callable(read)
    try:
        read()
    except ValueError:
        return False
    return True


def test_lines_are_those_of_the_support_matrix() -> None:
    matrix = tomllib.loads((ROOT / "env" / "lines.toml").read_text())["lines"]

    assert [line.vllm for line in LINES] == list(matrix)
    for line in LINES:
        pins = dict(one.split("==") for one in matrix[line.vllm]["requirements"] if "==" in one)
        assert line.purpose == matrix[line.vllm]["purpose"]
        assert (line.nixl, line.dynamo) == (pins["nixl"], pins.get("ai-dynamo"))
    assert SUPPORTED.tested == tuple(matrix)
    assert {one.dynamo: (one.vllm, one.nixl) for one in LINES if one.dynamo} == {
        name: (release.vllm, release.nixl) for name, release in RELEASES.items()
    }


def test_mooncakes_wheels_and_the_ops_sources_are_the_plugins_own() -> None:
    assert set(MOONCAKE) == set(importlib.import_module("mooncake_tier.stock").DISTRIBUTIONS)
    text = (ROOT / "plugins" / "flashinfer_nvfp4" / "installed.py").read_text()
    assert [name for name in OP_SOURCES if f'"{name}"' not in text] == []


def test_every_code_has_its_row_in_the_documentation() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.MULTILINE))

    assert rows == CODES


def test_every_variable_of_a_report_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    shared, _, own = page.partition("## Variables in a report")[2].partition("\n## ")[0].partition("Each host may")

    assert set(re.findall(r"`([A-Z0-9_]+)`", shared)) == {
        *(name for name, variable in VARIABLES.items() if variable.shared),
        *(name for name, agrees in OTHERS.items() if agrees),
    }
    assert set(re.findall(r"`([A-Z0-9_]+)`", own)) == {*VARIABLES, *OTHERS} - set(re.findall(r"`(\w+)`", shared))
