"""``glm53 lint`` and ``glm53 render``: exit codes, data, and folders that are written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_files import RECIPES, raw
from typer.testing import CliRunner

from glm53.cli import app
from glm53.output.folder import MARKER

runner = CliRunner()
B200 = next(path for path in RECIPES if path.stem == "glm53-b200")
CPU = next(path for path in RECIPES if path.stem == "glm53-cpu")
PINS: dict[str, Any] = {
    "images": {"digests": {"dynamo-frontend": "sha256:" + "a" * 64, "vllm-runtime": "sha256:" + "b" * 64}},
    "model": {"revision": "c" * 40},
}


def _render(out: Path, *options: str, recipe: Path = B200, to: str = "kubernetes") -> tuple[int, str]:
    result = runner.invoke(app, ["render", str(recipe), "--to", to, "-o", str(out), *options])
    return result.exit_code, result.stdout if "--json" in options else result.stderr


def _tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_clean_recipe_is_zero_and_says_what_is_not_pinned() -> None:
    result = runner.invoke(app, ["lint", str(B200), "--json"])

    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["findings"], data["targets"]) == ([], ["kubernetes", "slurm"])
    assert data["unpinned"] == ["images.digests.dynamo-frontend", "images.digests.vllm-runtime", "model.revision"]


def test_findings_are_one_with_code_field_message_and_fix(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(raw(engine={"block_size": 128, "kv_cache_dtype": "auto"})))
    result = runner.invoke(app, ["lint", str(path), "--json"])

    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert {finding["field"] for finding in findings} == {"engine.block_size", "engine.kv_cache_dtype"}
    assert all(finding.keys() == {"code", "field", "message", "fix"} for finding in findings)
    text = runner.invoke(app, ["lint", str(path)])
    assert text.exit_code == 1
    assert "Use 64." in text.stderr


@pytest.mark.parametrize("content", [None, "a: [", "- 1", "name: a\nname: b\n"])
def test_a_file_that_cannot_be_read_is_two(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "r.yaml"
    if content is not None:
        path.write_text(content)

    assert runner.invoke(app, ["lint", str(path)]).exit_code == 2
    assert _render(tmp_path / "out", recipe=path)[0] == 2
    assert not (tmp_path / "out").exists()


def test_rendering_writes_all_files_and_names_them(tmp_path: Path) -> None:
    code, text = _render(tmp_path / "out", "--json")

    assert code == 0
    data = json.loads(text)
    assert data["files"] == data["changed"]
    assert {*data["files"], MARKER} == _tree(tmp_path / "out").keys()
    assert os.access(tmp_path / "out" / "launch.sh", os.X_OK)
    assert not os.access(tmp_path / "out" / "graph.yaml", os.X_OK)


def test_rendering_again_changes_nothing_and_another_recipe_replaces_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _render(out)
    before = _tree(out)
    assert json.loads(_render(out, "--json")[1])["changed"] == []
    assert _tree(out) == before

    code, text = _render(out, "--json", to="slurm")
    assert code == 0
    assert {*json.loads(text)["files"], MARKER} == _tree(out).keys()
    assert "graph.yaml" not in _tree(out)


def test_other_peoples_files_are_left_alone_and_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert _render(out)[0] == 0
    assert (out / "notes.txt").read_text() == "mine"

    (out / "graph.yaml").write_text("edited by hand")
    before = _tree(out)
    code, message = _render(out)
    assert code == 1
    assert "was changed since it was rendered" in message
    assert _tree(out) == before


def test_a_file_in_the_way_that_was_not_rendered_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "launch.sh").write_text("mine")
    code, message = _render(out)

    assert code == 1
    assert "was not rendered by glm53" in message
    assert _tree(out) == {"launch.sh": "mine"}


def test_a_folder_that_is_a_file_and_a_damaged_marker_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert _render(file)[0] == 1
    _render(tmp_path / "out")
    for damaged in ("{", "[]", '"a"'):
        (tmp_path / "out" / MARKER).write_text(damaged)
        code, message = _render(tmp_path / "out")
        assert (code, "is damaged" in message) == (1, True)


@pytest.mark.parametrize(("to", "code", "finding"), [("kubernetes", 1, "folder"), ("local", 2, "target")])
def test_a_refusal_to_write_is_data_too(to: str, code: int, finding: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    ended, text = _render(file, "--json", to=to)

    data = json.loads(text)
    assert (ended, data["files"], [one["code"] for one in data["findings"]]) == (code, [], [finding])
    assert file.read_text() == "x"


def test_a_file_of_pins_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pins = tmp_path / "pins.yaml"
    fields = []
    for text in (None, "", "a: ["):
        if text is not None:
            pins.write_text(text)
        result = runner.invoke(app, ["lint", str(B200), "--pins", str(pins), "--json"])
        fields += [one["field"] for one in json.loads(result.stdout)["findings"]]
    assert fields == [f"--pins {pins}"] * 3


def test_a_target_that_the_recipe_does_not_name_is_wrong_usage(tmp_path: Path) -> None:
    for to in ("local", "nomad"):
        code, message = _render(tmp_path / "out", to=to)
        assert code == 2
        assert "names the targets kubernetes, slurm" in message
    assert not (tmp_path / "out").exists()


def test_findings_are_not_rendered(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(raw(router="random")))
    code, text = _render(tmp_path / "out", "--json", recipe=path)

    assert code == 1
    assert [finding["field"] for finding in json.loads(text)["findings"]] == ["router"]
    assert not (tmp_path / "out").exists()


def test_pins_from_a_file_are_merged_and_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    pins = tmp_path / "pins.yaml"
    pins.write_text(yaml.safe_dump(PINS))
    code, text = _render(tmp_path / "out", "--json", "--pins", str(pins))
    assert code == 0
    assert json.loads(text)["unpinned"] == []
    assert "@sha256:" + "b" * 64 in (tmp_path / "out" / "graph.yaml").read_text()

    pins.write_text(yaml.safe_dump(PINS | {"engine": {"block_size": 128}}))
    result = runner.invoke(app, ["lint", str(B200), "--pins", str(pins), "--json"])
    assert result.exit_code == 1
    assert [one["code"] for one in json.loads(result.stdout)["findings"]] == ["not-a-pin"]


def test_what_is_not_pinned_is_a_finding_where_that_is_asked_for(tmp_path: Path) -> None:
    pins = tmp_path / "pins.yaml"
    pins.write_text(yaml.safe_dump(PINS))

    result = runner.invoke(app, ["lint", str(B200), "--pinned", "--json"])
    assert result.exit_code == 1
    assert {one["code"] for one in json.loads(result.stdout)["findings"]} == {"unpinned"}
    assert runner.invoke(app, ["lint", str(B200), "--pinned", "--pins", str(pins)]).exit_code == 0
    assert runner.invoke(app, ["lint", str(CPU), "--pinned"]).exit_code == 0
    assert _render(tmp_path / "out", "--pinned")[0] == 1
    assert not (tmp_path / "out").exists()


def test_the_pins_script_prints_a_file_of_pins(tmp_path: Path) -> None:
    """Run for real, with stand-ins for the registry's and the hub's clients."""
    _render(tmp_path / "out")
    tools = tmp_path / "bin"
    tools.mkdir()
    front, engine = (PINS["images"]["digests"][name] for name in ("dynamo-frontend", "vllm-runtime"))
    docker = ["#!/bin/sh", f'case "$4" in *frontend*) echo {front};; *) echo {engine};; esac', ""]
    (tools / "docker").write_text("\n".join(docker))
    (tools / "curl").write_text(f'#!/bin/sh\necho \'{{"sha": "{"c" * 40}"}}\'\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / "pins.sh")],
        env={"PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert yaml.safe_load(done.stdout) == PINS


def test_local_scripts_are_what_up_starts(tmp_path: Path) -> None:
    from glm53.deployment import load
    from glm53.lint.commands import from_scripts
    from glm53.render.local import Ports, port_runs, render

    out = tmp_path / "out"
    assert _render(out, recipe=CPU, to="local")[0] == 0
    recipe = load(CPU)
    ports = Ports(8000, tuple(range(20_500, 20_500 + sum(port_runs(recipe)))))
    expected = render(recipe, ports, out.resolve() / "run", "python3")
    scripts = {name: text for name, text in _tree(out).items() if name.endswith(".sh")}
    found = [from_scripts({name: scripts[name]})[0] for name in sorted(scripts)]

    assert [(one.argv, one.env) for one in found] == [(one.argv, one.env) for one in expected]


def test_a_recipe_for_a_cluster_is_not_started_here(tmp_path: Path) -> None:
    result = runner.invoke(app, ["up", "-d", str(B200), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert "glm53 render" in result.stderr


def test_a_laptop_with_nothing_upstream_installed_can_lint_plan_and_render(tmp_path: Path) -> None:
    """In a process of its own that cannot import any of it."""
    from glm53.model.shape import Shape

    (tmp_path / "config.json").write_text(json.dumps(Shape(layers=4).config()))
    commands = [["lint", str(path)] for path in RECIPES]
    commands += [["render", str(B200), "--to", to, "-o", str(tmp_path / to)] for to in ("kubernetes", "slurm")]
    commands += [["render", str(CPU), "--to", "local", "-o", str(tmp_path / "local")]]
    commands += [["plan", "blhnc", "--model", str(tmp_path / "config.json"), "--tokens", "1000", "--json"]]
    code = f"""
import sys
upstream = ("vllm", "torch", "dynamo", "mooncake", "nixl", "transformers", "flashinfer", "kubernetes", "tokenizers",
            "numpy", "openai", "safetensors", "triton", "xgrammar")
sys.modules |= dict.fromkeys(upstream)
from glm53.cli import app
for command in {commands!r}:
    try:
        app(command)
    except SystemExit as done:
        if done.code:
            sys.exit(f"{{command}} ended with {{done.code}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kubernetes" / "graph.yaml").exists()
    assert (tmp_path / "slurm" / "job.sbatch").exists()
