"""Rendered manifests against Kubernetes' API, as its own Python client has it, and against Dynamo's CRD where given."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_models import api_problems, crd_problems
from recipe_files import TARGETS, deployment, files

from glm53.edge.kubernetes import render_kubernetes
from glm53.edge.model import load_edge
from glm53.lint.commands import documents
from glm53.lint.graph_schema import GraphDeployment
from glm53.render import kubernetes

EDGE = Path(__file__).parents[2] / "recipes" / "edges" / "glm53-two-clusters.yaml"
CRD = os.environ.get("GLM53_DYNAMO_CRD")
GRAPHS = [path for path, target in TARGETS if target == "kubernetes"]
MODELS = {
    "ConfigMap": "V1ConfigMap",
    "Deployment": "V1Deployment",
    "Job": "V1Job",
    "NetworkPolicy": "V1NetworkPolicy",
    "PodDisruptionBudget": "V1PodDisruptionBudget",
    "PriorityClass": "V1PriorityClass",
    "Service": "V1Service",
    "StatefulSet": "V1StatefulSet",
}
#: Kinds of others: Dynamo's below, the rest are looked at by `glm53 lint` only.
CUSTOM = {"ComputeDomain", "DynamoGraphDeployment", "DynamoModel", "PodMonitor", "ScaledObject"}

client = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes") is None, reason="needs the package kubernetes: make env installs it"
)


@client
@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_objects_and_pods_are_what_kubernetes_knows(path: Path) -> None:
    seen = set()
    for name, text in files(path, "kubernetes").items():
        for obj in documents(text) if name.endswith(".yaml") else []:
            seen.add(obj["kind"])
            if obj["kind"] in MODELS:
                assert list(api_problems(obj, MODELS[obj["kind"]])) == [], name
            if obj["kind"] == "DynamoGraphDeployment":
                for component in obj["spec"]["components"]:
                    assert list(api_problems(component["podTemplate"], "V1PodTemplateSpec")) == [], component["name"]
    assert seen <= {*MODELS, *CUSTOM}
    assert {"Job", "PodDisruptionBudget", "DynamoGraphDeployment", "PodMonitor"} <= seen


@client
def test_the_pod_that_copies_into_the_volume_is_what_kubernetes_knows() -> None:
    _, _, rest = kubernetes.render(deployment())["upload.sh"].partition("<< 'POD'\n")
    (obj,) = documents(rest.partition("\nPOD\n")[0])

    assert obj["kind"] == "Pod"
    assert list(api_problems(obj, "V1Pod")) == []


@client
def test_the_edges_objects_are_what_kubernetes_knows() -> None:
    objects = documents(render_kubernetes(load_edge(EDGE))["edge.yaml"])
    assert {obj["kind"] for obj in objects} <= {*MODELS, *CUSTOM}
    for obj in objects:
        if obj["kind"] in MODELS:
            assert list(api_problems(obj, MODELS[obj["kind"]])) == [], obj["kind"]


@client
def test_wrong_fields_and_types_would_be_seen() -> None:
    """The negative control."""
    (graph,) = documents(kubernetes.render(deployment())["graph.yaml"])
    template = graph["spec"]["components"][0]["podTemplate"]
    template["spec"]["containers"][0]["livenesProbe"] = {}
    template["spec"]["containers"][0]["ports"] = [{"containerPort": "80"}]
    del template["spec"]["containers"][0]["name"]
    problems = list(api_problems(template, "V1PodTemplateSpec"))

    assert any("livenesProbe does not exist" in problem for problem in problems)
    assert any("'80' is no int" in problem for problem in problems)
    assert any("`name`" in problem for problem in problems)


@pytest.mark.skipif(importlib.util.find_spec("dynamo") is None, reason="needs ai-dynamo: make env installs it")
def test_the_graphs_that_the_release_itself_ships_have_the_shape_that_is_checked_for() -> None:
    """The wheel's templates, which its profiler fills in; they are not imported, and hold no other kind."""
    found = importlib.util.find_spec("dynamo.profiler")
    assert found is not None
    root = next(iter(found.submodule_search_locations or []))
    shipped = sorted(Path(root).glob("templates/dgd/*/*.yaml"))

    assert len(shipped) >= 5
    for path in shipped:
        for graph in documents(path.read_text(encoding="utf-8")):
            assert graph["apiVersion"] == "nvidia.com/v1beta1"
            GraphDeployment.model_validate(graph)


@pytest.mark.skipif(
    CRD is None,
    reason="GLM53_DYNAMO_CRD names no file; give deploy/operator/config/crd/bases/"
    "nvidia.com_dynamographdeployments.yaml of ai-dynamo/dynamo at v1.6.1",
)
@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_graphs_are_what_dynamos_own_schema_allows(path: Path) -> None:
    crd = yaml.safe_load(Path(str(CRD)).read_text(encoding="utf-8"))
    (graph,) = documents(files(path, "kubernetes")["graph.yaml"])

    assert list(crd_problems(graph, crd)) == []


def test_a_schema_refuses_values_and_fields_that_it_does_not_list() -> None:
    """What the test above does with a definition, shown on a small one."""
    pod = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    component = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "pod": pod}}
    spec = {"type": "object", "properties": {"framework": {"enum": ["vllm"]}, "components": {"items": component}}}
    schema = {"type": "object", "properties": {"apiVersion": {}, "kind": {}, "spec": spec}}
    served = {"name": "v1beta1", "served": True, "schema": {"openAPIV3Schema": schema}}
    crd: dict[str, Any] = {"spec": {"versions": [served]}}
    good = {"framework": "vllm", "components": [{"name": "a", "pod": {"anything": 1}}]}
    obj: dict[str, Any] = {"apiVersion": "nvidia.com/v1beta1", "kind": "K", "spec": good}

    assert list(crd_problems(obj, crd)) == []
    wrong = {"framework": "tokenspeed", "services": {}, "components": [{"nam": "a"}]}
    problems = "\n".join(crd_problems(obj | {"spec": wrong}, crd))
    for part in ("'tokenspeed' is not one of", "$.spec.services does not", "'name' is a required", "nam does not"):
        assert part in problems
    assert list(crd_problems(obj | {"apiVersion": "nvidia.com/v1alpha1"}, crd)) == [
        "v1alpha1 is not served; there are v1beta1"
    ]
