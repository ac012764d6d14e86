"""Faults that public recipes were reported with: each is caught before anything is launched.

The number is that of the report's issue or pull request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from recipe_files import TARGETS, deployment, files, raw

from glm53.deployment import DeploymentError, facts, parse
from glm53.deployment.facts import RELEASES, Release
from glm53.lint.commands import documents, from_manifests
from glm53.lint.files import check
from glm53.render import kubernetes

GRAPH = kubernetes.render(deployment())


def _codes(data: dict[str, Any]) -> set[str]:
    with pytest.raises(DeploymentError) as caught:
        parse(data)
    return {finding.code for finding in caught.value.findings}


def _changed(change: Callable[[dict[str, Any]], None]) -> set[str]:
    """Codes of what the checks find in the rendered graph after `change`."""
    (graph,) = documents(GRAPH["graph.yaml"])
    change(graph)
    return {finding.code for finding in check(GRAPH | {"graph.yaml": json.dumps(graph)}, "kubernetes")}


def _component(graph: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in graph["spec"]["components"] if one["name"] == name)


def _main(graph: dict[str, Any], name: str) -> dict[str, Any]:
    main: dict[str, Any] = _component(graph, name)["podTemplate"]["spec"]["containers"][0]
    return main


def _argument(graph: dict[str, Any], name: str, flag: str, value: str) -> None:
    arguments = _main(graph, name)["args"]
    arguments[arguments.index(flag) + 1] = value


def test_the_engines_image_on_a_frontend_is_caught() -> None:
    """dynamo#14229"""
    assert "engine-image-on-frontend" in _codes(raw(images={"frontend": "vllm-runtime"}))

    def change(graph: dict[str, Any]) -> None:
        _main(graph, "frontend")["image"] = _main(graph, "decode")["image"]

    assert "engine-image-on-frontend" in _changed(change)


@pytest.mark.parametrize("release", ["1.5.0", "1.7.0", "1.6", "latest"])
def test_a_tag_of_no_release_that_is_known_is_caught(release: str) -> None:
    """dynamo#13596: tags that were never published"""
    assert "unknown-release" in _codes(raw(release=release))


def test_two_release_lines_in_one_deployment_are_caught() -> None:
    """dynamo#13596, #11355"""

    def change(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["image"] = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.0"

    assert {"release-lines", "disagreement"} <= _changed(change)


def test_an_image_without_release_or_digest_is_caught() -> None:
    def change(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["image"] = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:nightly"

    assert "image-reference" in _changed(change)


def test_a_value_that_the_schema_does_not_list_is_caught() -> None:
    """dynamo#9225: backendFramework: tokenspeed"""
    assert "graph-schema" in _changed(lambda graph: graph["spec"].update(backendFramework="tokenspeed"))
    assert "graph-schema" in _changed(lambda graph: _component(graph, "decode").update(type="decoder"))


def test_placeholders_are_caught_in_recipe_and_files() -> None:
    """dynamo#9715: my-tag"""
    assert "image-name" in _codes(raw(images={"engine": "vllm-runtime:my-tag"}))
    assert "placeholder" in _codes(raw(images={"registry": "registry.example.com/dynamo"}))

    def change(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["image"] = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag"

    assert "placeholder" in _changed(change)


def test_the_older_shape_of_the_graph_is_caught() -> None:
    """dynamo#9715: fields of v1alpha1 under v1beta1"""

    def services(graph: dict[str, Any]) -> None:
        graph["spec"]["services"] = {"Frontend": {"componentType": "frontend"}}

    def pod_spec(graph: dict[str, Any]) -> None:
        _component(graph, "decode")["extraPodSpec"] = {"mainContainer": {"image": "x"}}

    def version(graph: dict[str, Any]) -> None:
        graph["apiVersion"] = "nvidia.com/v1alpha1"

    for change in (services, pod_spec, version):
        assert "graph-schema" in _changed(change)


def test_a_graph_is_validated_without_a_cluster() -> None:
    """dynamo#4366"""

    def no_main(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["name"] = "engine"

    def one_node(graph: dict[str, Any]) -> None:
        _component(graph, "prefill")["multinode"] = {"nodeCount": 1}

    def twice(graph: dict[str, Any]) -> None:
        _component(graph, "decode")["name"] = "Prefill"

    def version(graph: dict[str, Any]) -> None:
        _component(graph, "decode")["runtimeVersionOverride"] = "1.5.0"

    for change in (no_main, one_node, twice, version):
        assert "graph-schema" in _changed(change)


def test_references_that_find_nothing_are_caught() -> None:
    def config(graph: dict[str, Any]) -> None:
        volumes = _component(graph, "prefill")["podTemplate"]["spec"]["volumes"]
        volumes.append({"name": "settings", "configMap": {"name": "another"}})

    def claim(graph: dict[str, Any]) -> None:
        _component(graph, "decode")["podTemplate"]["spec"]["resourceClaims"] = [
            {"name": "domain", "resourceClaimTemplateName": "nobody-makes-it"}
        ]

    def labels(graph: dict[str, Any]) -> None:
        _component(graph, "decode")["podTemplate"]["metadata"]["labels"] = {}

    assert "config-missing" in _changed(config)
    assert {"claim-missing", "claim-unused"} <= _changed(claim)
    assert "selects-nothing" in _changed(labels)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ({"enable_kv_cache_events": False}, "router-events"),
        ({"publisher": "null"}, "router-events"),
        # vLLM connects there instead of binding, and publishes to nobody.
        ({"endpoint": "tcp://127.0.0.1:20080"}, "events-endpoint"),
        ({"endpoint": "tcp://10.0.0.1:20080"}, "events-endpoint"),
    ],
)
def test_a_kv_router_that_would_hear_nothing_is_caught(events: dict[str, Any], code: str) -> None:
    """dynamo#11984, #8164, #5565: events configured but never published, a router that shows no hit"""
    good = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:20080"}

    def change(graph: dict[str, Any]) -> None:
        _argument(graph, "prefill", "--kv-events-config", json.dumps(good | events))

    assert code in _changed(change)


def test_a_kv_router_that_is_told_not_to_listen_is_caught() -> None:
    """dynamo#8164"""

    def deaf(graph: dict[str, Any]) -> None:
        arguments = _main(graph, "frontend")["args"]
        arguments[arguments.index("--router-kv-events")] = "--no-router-kv-events"

    def uncached(graph: dict[str, Any]) -> None:
        arguments = _main(graph, "prefill")["args"]
        arguments[arguments.index("--enable-prefix-caching")] = "--no-enable-prefix-caching"

    assert "router-events" in _changed(deaf)
    assert "router-events" in _changed(uncached)


def test_every_image_comes_from_the_registry_that_the_recipe_names() -> None:
    """dynamo#4297: hard-coded images, and private registries"""
    recipe = deployment(images={"registry": "registry.internal:5000/dynamo"}, cluster={"pull_secret": "registry"})
    rendered = kubernetes.render(recipe)
    images = [command.image for command in from_manifests(rendered)]

    assert len(images) >= 6
    assert all(str(image).startswith("registry.internal:5000/dynamo/") for image in images)
    manifests = [text for name, text in rendered.items() if name.endswith(".yaml")]
    specs = [one for text in manifests for obj in documents(text) for one in _pods(obj)]
    assert len(specs) == len(images)
    assert all(spec["imagePullSecrets"] == [{"name": "registry"}] for spec in specs)


def _pods(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [pod for item in value for pod in _pods(item)]
    if not isinstance(value, dict):
        return []
    return ([value] if "containers" in value else []) + [pod for item in value.values() for pod in _pods(item)]


def test_an_image_whose_vllm_the_plugins_were_not_tested_with_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/recipes#511: a recipe that fails on import inside its own pinned image"""
    monkeypatch.setitem(facts.RELEASES, "9.9.9", Release(vllm="9.9.0", nixl="9.9.0", mooncake="9.9.0"))

    assert "untested-release" in _codes(raw(release="9.9.9"))


def test_packages_that_would_be_installed_at_start_are_caught() -> None:
    def change(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["command"] = ["bash", "-c", "pip install ai-dynamo && python3 -m dynamo.vllm"]
        _main(graph, "decode")["args"] = ["-m", "dynamo.vllm", *_main(graph, "decode")["args"]]

    assert "install-at-start" in _changed(change)


@pytest.mark.parametrize(
    "environment", [{"VLLM_TARGET_DEVICE": "cpu"}, {"VLLM_CPU_DSA": "1"}, {"CUDA_VISIBLE_DEVICES": ""}]
)
def test_a_worker_that_would_silently_serve_on_the_cpu_is_caught(environment: dict[str, str]) -> None:
    """vllm#48277"""
    roles = {"decode": {"tensor_parallel": 4, "environment": environment}}

    assert "cpu-setting-on-gpu" in _codes(raw(roles=roles))


def test_a_list_of_plugins_that_leaves_out_what_the_recipe_uses_is_caught() -> None:
    """vllm#48277: a plugin that is not loaded is not missed by vLLM"""
    roles = {"decode": {"tensor_parallel": 4, "environment": {"VLLM_PLUGINS": "dynamo_nixl_telemetry"}}}

    assert "plugins-left-out" in _codes(raw(roles=roles))


def test_switched_off_version_checks_are_caught() -> None:
    """A recipe in the wild sets FLASHINFER_DISABLE_VERSION_CHECK."""

    def change(graph: dict[str, Any]) -> None:
        _main(graph, "decode")["env"].append({"name": "FLASHINFER_DISABLE_VERSION_CHECK", "value": "1"})

    assert "disabled-check" in _changed(change)


def test_every_release_lies_in_the_window_of_every_plugin() -> None:
    """vllm-plugin-FL#195: a plugin that imports a moved module ends every vllm command"""
    from dynamo_structural_tags.stock import VLLM as tags
    from flashinfer_nvfp4.stock import VLLM as nvfp4
    from vllm_blhnc.stock import NIXL, VLLM

    for release in RELEASES.values():
        for window in (VLLM, nvfp4, tags):
            assert release.vllm in window.tested
        assert release.nixl in NIXL.tested


def test_a_side_channel_on_the_own_machine_is_caught() -> None:
    """Dynamo 1.6.1 sets the address for NixlConnector, but not inside MultiConnector; vLLM's default is localhost."""

    def change(graph: dict[str, Any]) -> None:
        main = _main(graph, "prefill")
        main["env"] = [one for one in main["env"] if one["name"] != "VLLM_NIXL_SIDE_CHANNEL_HOST"]

    assert "side-channel" in _changed(change)


def test_a_missing_fabric_is_an_error_and_not_tcp() -> None:
    """vllm#55434 and others: transfers over TCP are noticed by their slowness only."""
    assert "no-fabric" in _codes(raw(cluster={"rdma": None}))

    for engine in (one for one in from_manifests(GRAPH) if one.kind == "engine"):
        assert "tcp" not in engine.env["UCX_TLS"].split(",")
        assert "rc" in engine.env["UCX_TLS"].split(",")


@pytest.mark.parametrize("seconds", [5, 3600])
def test_a_lease_of_the_tier_that_loses_blocks_or_fills_the_pool_is_caught(seconds: int) -> None:
    """prime-rl#2689: Mooncake's default lost blocks between lookup and load. An hour keeps all of a busy pool."""
    assert "tier-lease" in _codes(raw(tier={"memory": "64GiB", "lease_seconds": seconds}))

    tier = GRAPH["tier.yaml"].replace("- --lease\n        - '30'", f"- --lease\n        - '{seconds}'")
    assert tier != GRAPH["tier.yaml"]
    assert "tier-lease" in {one.code for one in check(GRAPH | {"tier.yaml": tier}, "kubernetes")}


@pytest.mark.parametrize(("path", "target"), TARGETS)
def test_no_shipped_recipe_has_any_of_these(path: Any, target: Any) -> None:
    assert check(files(path, target), target) == []
