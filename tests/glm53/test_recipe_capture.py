"""A recipe with ``capture``: which workers record, where to, and what cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from recipe_files import deployment, raw

from glm53.deployment import Deployment, DeploymentError, parse
from glm53.deployment.capture import Capture
from glm53.lint.commands import documents, from_manifests, from_scripts
from glm53.lint.files import check
from glm53.output.shell import script
from glm53.render import kubernetes, slurm
from glm53.render.local import Ports, render
from rl_capture.settings import Settings

VOLUME = {"capture": {"volume": "records"}, "targets": ["kubernetes"]}


def _local(**capture: Any) -> Deployment:
    return parse(
        {
            "name": "small",
            "model": {"path": "model", "served_name": "tiny"},
            "workers": {"prefill": 1, "decode": 1},
            "capture": capture,
        }
    )


def _recording(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("RL_CAPTURE")}


def test_nothing_is_recorded_by_default() -> None:
    recipe = deployment()

    assert recipe.capture is None
    assert not any(_recording(command.env) for command in from_manifests(kubernetes.render(recipe)))


def test_defaults_are_the_plugins() -> None:
    """Written twice, because a laptop that renders has no need of the plugin."""
    plugin, recipe = Settings(Path("/x")), Capture()

    assert (recipe.sample, recipe.redact, recipe.text) == (plugin.sample, plugin.redact, plugin.text)
    assert (recipe.prompt_tokens, recipe.file, recipe.total) == (
        *(plugin.prompt_tokens, plugin.file_bytes, plugin.total_bytes),
    )
    assert (recipe.full == "drop-oldest") == plugin.drop_oldest


def test_the_plugin_reads_what_is_rendered() -> None:
    recipe = _local(
        sample=0.125, patterns="/etc/secrets", text=True, prompt_tokens=0, file="1MiB", total="1GiB", full="drop-oldest"
    )
    processes = render(recipe, Ports(8000, tuple(range(20_000, 20_020))), Path("/run/small"), "python3")
    told = {process.name: _recording(process.env) for process in processes}

    assert {name for name, env in told.items() if env} == {"decode-0"}
    assert Settings.read(told["decode-0"]) == Settings(
        *(Path("/run/small/capture"), 0.125, "/etc/secrets", True, 0, True, "model", 1 << 20, 1 << 30, True)
    )


def test_on_kubernetes_decode_writes_to_a_claim_that_launch_looks_for() -> None:
    files = kubernetes.render(deployment(model={"revision": "0" * 40}, **VOLUME))
    (graph,) = documents(files["graph.yaml"])
    pods = {one["name"]: one["podTemplate"]["spec"] for one in graph["spec"]["components"]}
    main = pods["decode"]["containers"][0]
    env = {one["name"]: one.get("value") for one in main["env"]}

    assert env["RL_CAPTURE_DIR"] == "/capture/small"
    assert env["RL_CAPTURE_WEIGHTS"] == f"nvidia/GLM-5.3-NVFP4@{'0' * 40}"
    assert {"name": "capture", "mountPath": "/capture"} in main["volumeMounts"]
    assert {"name": "capture", "persistentVolumeClaim": {"claimName": "records"}} in pods["decode"]["volumes"]
    for other in ("prefill", "frontend"):
        assert "capture" not in {one["name"] for one in pods[other]["volumes"]}
    assert "kube get pvc records" in files["launch.sh"]
    assert [*check(files, "kubernetes")] == []


def test_records_that_would_go_with_the_pod_are_found() -> None:
    files = kubernetes.render(deployment(**VOLUME))
    lost = {name: text.replace("mountPath: /capture\n", "mountPath: /elsewhere\n") for name, text in files.items()}

    assert "records-lost" in {finding.code for finding in check(lost, "kubernetes")}


def test_under_slurm_all_decode_groups_record_into_the_shared_folder_alike() -> None:
    files = slurm.render(deployment(capture={}, targets=["slurm"]))
    told = {one.where: _recording(one.env) for one in from_scripts(files) if one.role == "decode"}

    assert {env["RL_CAPTURE_DIR"] for env in told.values()} == {"/shared/capture/small"}
    assert len(told) == 2
    (command,) = from_scripts({"decode-1.sh": files["decode-1.sh"]})
    changed = script("changed", command.argv, {**command.env, "RL_CAPTURE_REDACT": "none"})
    found = [*check(files | {"decode-1.sh": changed}, "slurm")]
    assert [(one.code, one.field) for one in found] == [("disagreement", "capture of decode")]


@pytest.mark.parametrize(
    ("changed", "code", "field"),
    [
        ({"capture": {}}, "capture-volume", "capture.volume"),
        ({"capture": {"volume": "records"}, "targets": ["slurm"]}, "capture-volume", "capture.volume"),
        ({"capture": {"volume": "models"}}, "capture-volume", "capture.volume"),
        ({"capture": {"volume": "records", "file": "1GiB", "total": "1GiB"}}, "capture-size", "capture.total"),
        (
            {"capture": {"volume": "records", "redact": "none", "patterns": "/p"}},
            "capture-redaction",
            "capture.patterns",
        ),
        ({"capture": {"volume": "records", "patterns": "p"}}, "bad-value", "capture.patterns"),
        ({"capture": {"volume": "records", "sample": 0}}, "bad-value", "capture.sample"),
        ({"capture": {"volume": "records", "full": "wait"}}, "bad-value", "capture.full"),
        ({"capture": {"folder": "/x"}}, "unknown-key", "capture.folder"),
        (
            {
                **VOLUME,
                "roles": {
                    "decode": {
                        "tensor_parallel": 4,
                        "environment": {"VLLM_PLUGINS": "dynamo_structural_tags,flashinfer_nvfp4"},
                    }
                },
            },
            "plugins-left-out",
            "roles.decode.environment.VLLM_PLUGINS",
        ),
    ],
)
def test_what_cannot_work_is_a_finding(changed: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        parse(raw(**changed))

    assert (code, field) in {(one.code, one.field) for one in caught.value.findings}


def test_the_doctor_wants_the_plugin_where_it_records() -> None:
    from glm53.doctor.needs import HOST_ROLES, Needs

    recipe = deployment(**VOLUME)

    assert [role for role in HOST_ROLES if "rl_capture" in Needs(recipe, role).plugins] == ["decode", "aggregated"]
