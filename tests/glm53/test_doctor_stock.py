"""``glm53 doctor`` on the real environments of the support matrix: the line is named, and nothing false is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_site import DYNAMO_REQUIRES

from glm53.doctor.inventory import Inventory
from glm53.doctor.lines import LINES
from glm53.doctor.packages import examine

ROOT = Path(__file__).parents[2]
#: Variables that change the diagnosis, and that a developer's shell may have.
HIDDEN = ("VLLM_", "FLASHINFER_", "DYNAMO_", "DYN_", "UCX_", "STOCKPATCH_", "PYTHONPATH")


def _interpreter(line: str) -> Path:
    """Of the environment of a line, as the Makefile names its folder."""
    folder = ".venv" if line == LINES[0].vllm else f".venv-{line}"
    path = ROOT / folder / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{folder} is not here: run python3 env/setup_env.py --line {line} --venv {folder}")
    return path


def _doctor(python: Path, folder: Path, *options: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    done = subprocess.run(
        [str(python), "-m", "glm53", "doctor", "--json", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.stdout, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.vllm)
def test_an_environment_of_the_matrix_is_named_and_has_no_finding(line: Any, tmp_path: Path) -> None:
    report = _doctor(_interpreter(line.vllm), tmp_path)

    assert report["line"] == line.vllm
    assert report["purpose"] == line.purpose
    assert report["versions"]["nixl"] == line.nixl
    assert [one for one in report["findings"] if one["code"] not in ("gpu-unreadable", "rdma-down")] == []
    assert {one["name"]: one["state"] for one in report["plugins"]} == dict.fromkeys(
        ("vllm_blhnc", "flashinfer_nvfp4", "dynamo_structural_tags", "mooncake_tier", "rl_capture", "vllm_cpu_dsa"),
        "ready",
    )


def test_the_local_stacks_recipe_finds_what_it_needs(tmp_path: Path) -> None:
    python = _interpreter(LINES[0].vllm)
    report = _doctor(python, tmp_path, "--recipe", str(ROOT / "recipes" / "glm53-cpu.yaml"), "--role", "decode")

    assert [one["code"] for one in report["findings"] if one["code"] not in ("memory-small", "architecture")] == []
    states = {one["name"]: one["state"] for one in report["plugins"]}
    assert (states["vllm_blhnc"], states["vllm_cpu_dsa"]) == ("on", "on")


def _real(folder: Path, line: str, *names: str) -> None:
    """Link real metadata of an environment into a folder."""
    packages = next((_interpreter(line).parent.parent / "lib").glob("python3*")) / "site-packages"
    for name in names:
        place = next(packages.glob(f"{name}-*.dist-info"))
        (folder / place.name).symlink_to(place)


def test_the_real_metadata_of_dynamo_and_of_a_newer_vllm_do_not_go_together(tmp_path: Path) -> None:
    """What the stand-ins of the other tests say of ai-dynamo 1.6.1 and NIXL is what the wheels say."""
    _real(tmp_path, "0.31.0", "ai_dynamo", "ai_dynamo_runtime", "nixl", "nixl_cu12")
    _real(tmp_path, "0.33.0", "vllm", "xgrammar")
    found = {one.code: one for one in examine(Inventory.read([str(tmp_path)]), {})}

    assert found.keys() == {"dynamo-pins", "nixl-floor"}
    assert "ai-dynamo==1.6.1 pins vllm[flashinfer,otel,runai]==0.31.0" in found["dynamo-pins"].message
    assert "1.4.1 is installed, and vLLM 0.33.0" in found["nixl-floor"].message


def test_the_stand_ins_requirements_are_those_of_the_real_dynamo() -> None:
    python = _interpreter("0.31.0")
    site = next((python.parent.parent / "lib").glob("python3*")) / "site-packages"
    dynamo = Inventory.read([str(site)]).packages.get("ai-dynamo")
    if dynamo is None:
        pytest.skip("ai-dynamo is not installed here: run make env")

    assert set(DYNAMO_REQUIRES) <= set(dynamo.requires)


def test_metadata_and_imports_agree_on_this_interpreter(tmp_path: Path) -> None:
    """The doctor's own reading against importlib.metadata's, which vLLM asks."""
    probe = (
        "import json; from importlib import metadata as m; print(json.dumps(["
        "{n: m.version(n) for n in ('vllm', 'nixl', 'xgrammar')}, "
        "sorted('vllm.general_plugins: ' + e.name for e in m.entry_points(group='vllm.general_plugins'))]))"
    )
    try:
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=tmp_path, check=True)
    except subprocess.CalledProcessError:
        pytest.skip("vLLM is not installed here: run make env")
    versions, entries = json.loads(done.stdout)
    report = _doctor(Path(sys.executable), tmp_path)

    assert {name: report["versions"][name] for name in versions} == versions
    assert [one for one in report["entry_points"] if one.startswith("vllm.general_plugins: ")] == entries
