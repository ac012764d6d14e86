"""The switch, the platform entry point and what importing the package costs; nothing stock is needed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import vllm_cpu_dsa
from stockpatch import UnsupportedVersion


@pytest.mark.parametrize("value", [None, "", "0"])
def test_the_plugin_is_idle_until_switched_on(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("VLLM_CPU_DSA", raising=False)
    if value is not None:
        monkeypatch.setenv("VLLM_CPU_DSA", value)

    assert vllm_cpu_dsa.enabled() is False
    assert vllm_cpu_dsa.platform() is None
    vllm_cpu_dsa.register()  # would fail without vLLM if it did anything


def test_one_switches_the_platform_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_DSA", "1")

    assert vllm_cpu_dsa.enabled() is True
    assert vllm_cpu_dsa.platform() == "vllm_cpu_dsa.platform.CpuDsaPlatform"


@pytest.mark.parametrize("value", ["true", "yes", "2", " 1", "on"])
def test_any_other_value_stops_the_start_up(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VLLM_CPU_DSA", value)

    with pytest.raises(ValueError, match=r"VLLM_CPU_DSA=.*neither on nor off.*allowed.*Set VLLM_CPU_DSA=1"):
        vllm_cpu_dsa.register()


def test_a_bad_value_never_raises_in_the_platform_hook_where_vllm_would_swallow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CPU_DSA", "maybe")

    assert vllm_cpu_dsa.platform() is None


def test_an_untested_release_of_vllm_stops_the_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "vllm-0.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VLLM_CPU_DSA", "1")

    with pytest.raises(UnsupportedVersion, match=r"vllm==0\.99\.0 is installed.*>=0\.31,<0\.34"):
        vllm_cpu_dsa.register()


def test_importing_the_package_its_register_and_its_guards_brings_in_no_stock_package() -> None:
    code = (
        "import vllm_cpu_dsa, vllm_cpu_dsa.patches, vllm_cpu_dsa.guards, vllm_cpu_dsa.rows, sys;"
        "print(sorted({'torch', 'vllm', 'numpy', 'transformers'} & set(sys.modules)))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("vllm.platform_plugins", "vllm_cpu_dsa", "vllm_cpu_dsa:platform"),
        ("vllm.general_plugins", "vllm_cpu_dsa", "vllm_cpu_dsa:register"),
        ("vllm_cpu_dsa.row_formats", "plain", "vllm_cpu_dsa.rows:PlainRows"),
    ],
)
def test_the_installed_entry_points_lead_here(group: str, name: str, value: str) -> None:
    found = [entry for entry in entry_points(group=group) if entry.name == name]
    if not found:
        pytest.skip("the project is not installed: pip install --no-deps -e .")

    assert {entry.value for entry in found} == {value}
    found[0].load()
