"""The edge file and what it renders to, without Envoy; test_edge_stock.py has Envoy read and run it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from glm53.cli import app
from glm53.deployment import DeploymentError
from glm53.edge.keys import envoy_keys
from glm53.edge.kubernetes import render_kubernetes
from glm53.edge.model import Edge, load_edge
from glm53.edge.parts import CLUSTERS, ENVOY
from glm53.edge.running import drained, local_files, update

runner = CliRunner()
SHIPPED = Path(__file__).parents[2] / "recipes" / "edges" / "glm53-two-clusters.yaml"
MEMBERS = [{"name": "east", "host": "10.0.0.1"}, {"name": "west", "host": "10.0.0.2"}]


def _edge(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(yaml.safe_dump({"name": "edge", "model": "glm-5.3", "members": MEMBERS} | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"retry": 3}, "unknown-key", "retry"),
        ({"model": ""}, "bad-value", "model"),
        ({"members": []}, "bad-value", "members"),
        ({"members": [MEMBERS[0], MEMBERS[0] | {"host": "10.0.0.9"}]}, "member-twice", "members"),
        ({"members": [MEMBERS[0], MEMBERS[1] | {"host": "10.0.0.1"}]}, "member-address", "members"),
        ({"members": [one | {"standby": True} for one in MEMBERS]}, "all-standby", "members"),
        ({"members": [one | {"drain": True} for one in MEMBERS]}, "all-drained", "members"),
        ({"limits": {"per_key_per_minute": 60}}, "limit-without-keys", "limits.per_key_per_minute"),
        ({"port": 9901}, "port-clash", "port"),
        ({"tls": {"certificate": "c.pem"}}, "missing-key", "tls.key"),
        ({"sessions": ["X-Session"]}, "bad-value", "sessions.0"),
    ],
)
def test_what_cannot_work_is_a_finding_with_its_field(
    tmp_path: Path, changes: dict[str, Any], code: str, field: str
) -> None:
    result = runner.invoke(app, ["edge", "lint", str(_edge(tmp_path, **changes)), "--json"])

    assert result.exit_code == 1
    assert [(one["code"], one["field"]) for one in json.loads(result.stdout)["findings"]] == [(code, field)]


@pytest.mark.parametrize(("text", "code"), [("[]", "not-a-mapping"), ("a: [", "not-yaml")])
def test_a_file_that_is_no_edge_is_a_finding(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(text)
    with pytest.raises(DeploymentError) as refused:
        load_edge(path)

    assert [one.code for one in refused.value.findings] == [code]


def test_the_edge_for_one_machine_is_right_and_renders(tmp_path: Path) -> None:
    path = SHIPPED.with_name("local.yaml")
    lint = runner.invoke(app, ["edge", "lint", str(path)])
    local = runner.invoke(app, ["edge", "render", str(path), "--to", "local", "-o", str(tmp_path / "out")])

    assert (lint.exit_code, local.exit_code) == (0, 0), local.output
    assert {ENVOY, CLUSTERS} <= {one.name for one in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("field", ["keys", "tls"])
def test_an_edge_whose_secrets_are_a_clusters_does_not_run_open_on_this_machine(tmp_path: Path, field: str) -> None:
    path = _edge(tmp_path, **{f"{field}_secret": "mine"})
    result = runner.invoke(app, ["edge", "run", str(path), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert f"[no-local-{field}]" in result.stderr


def test_the_edge_of_two_clusters_is_right_and_renders_to_kubernetes(tmp_path: Path) -> None:
    result = runner.invoke(app, ["edge", "render", str(SHIPPED), "--to", "kubernetes", "-o", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    objects = list(yaml.safe_load_all((tmp_path / "out" / "edge.yaml").read_text()))
    assert [one["kind"] for one in objects] == [
        *("ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "PodMonitor", "ConfigMap"),
    ]


def test_new_pods_come_with_a_new_bootstrap_and_not_with_a_drain() -> None:
    def annotation(edge: Edge) -> str:
        objects = list(yaml.safe_load_all(render_kubernetes(edge)["edge.yaml"]))
        return str(objects[1]["spec"]["template"]["metadata"]["annotations"]["glm53/bootstrap"])

    edge = load_edge(SHIPPED)
    members = (edge.members[0].model_copy(update={"drain": True}), *edge.members[1:])

    assert annotation(edge.model_copy(update={"members": members})) == annotation(edge)
    assert annotation(edge.model_copy(update={"retries": 5})) != annotation(edge)


def test_no_rendered_manifest_holds_a_key_or_a_local_path(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    edge = load_edge(_edge(tmp_path, keys=str(keys), keys_secret="edge-keys", tls_secret="edge-tls"))
    text = render_kubernetes(edge)["edge.yaml"]

    assert str(tmp_path) not in text
    assert "Bearer KEY" in text  # the hint in the answer to a wrong key
    assert "exact: Bearer" not in text


def test_keys_become_rules_that_only_the_owner_can_read(tmp_path: Path) -> None:
    out = tmp_path / "keys.yaml"
    listed = "# staff\nann sk-0123456789abcdefghij\n\nbob sk-ABCDEFGHIJ0123456789\n"
    result = runner.invoke(app, ["edge", "keys", "-", "-o", str(out)], input=listed)

    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    policies = yaml.safe_load(out.read_text())["resources"][0]["typed_config"]["rules"]["policies"]
    [principal] = policies["ann"]["principals"]
    assert principal["header"]["string_match"] == {"exact": "Bearer sk-0123456789abcdefghij"}
    assert policies.keys() == {"ann", "bob"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann", "1 words"),
        ("ann one two", "3 words"),
        ("a/b sk-0123456789abcdefghij", "other signs"),
        ("ann short", "shorter than 20"),
        ("ann sk-0123456789abcdéfghij", "cannot carry"),
        ("bob sk-00000000000000000000", "bob has a key already"),
        ("ann sk-ABCDEFGHIJ0123456789", "another client has this key"),
        ("", "names no client"),
    ],
)
def test_a_wrong_key_is_named_by_its_line_and_never_shown(line: str, said: str) -> None:
    before = "bob sk-ABCDEFGHIJ0123456789\n" if line else ""
    with pytest.raises(DeploymentError) as refused:
        envoy_keys(before + line)

    assert said in str(refused.value)
    assert "sk-" not in str(refused.value)


def test_draining_changes_the_members_and_nothing_else(tmp_path: Path) -> None:
    edge, folder = load_edge(_edge(tmp_path)), tmp_path / "run"
    folder.mkdir()
    for name, text in local_files(edge, folder).items():
        (folder / name).write_text(text)
    before = (folder / ENVOY).read_text()
    assert drained(folder) == set()
    update(edge, folder, {"east"})

    assert drained(folder) == {"east"}
    assert (folder / ENVOY).read_text() == before
    for drain, said in (({"east", "west"}, "no member would take requests"), ({"north"}, "no member north")):
        with pytest.raises(DeploymentError, match=said):
            update(edge, folder, drain)
    with pytest.raises(DeploymentError, match="more than the members has changed"):
        update(edge.model_copy(update={"retries": 7}), folder, set())
    assert drained(folder) == {"east"}
    with pytest.raises(DeploymentError, match="no edge was started"):
        drained(tmp_path / "elsewhere")


def test_a_standby_has_the_second_priority(tmp_path: Path) -> None:
    edge = load_edge(_edge(tmp_path, members=[MEMBERS[0], MEMBERS[1] | {"standby": True}]))
    cluster = yaml.safe_load(local_files(edge, tmp_path)[CLUSTERS])["resources"][0]

    assert [one["priority"] for one in cluster["load_assignment"]["endpoints"]] == [0, 1]


@pytest.mark.parametrize(
    ("per_minute", "tokens", "interval"), [(5, 1, "12.000s"), (60, 1, "1.000s"), (600, 10, "1.000s")]
)
def test_a_limit_a_minute_is_refilled_evenly(tmp_path: Path, per_minute: int, tokens: int, interval: str) -> None:
    path = _edge(tmp_path, keys="keys.yaml", limits={"per_key_per_minute": per_minute})
    bootstrap = yaml.safe_load(local_files(load_edge(path), tmp_path)[ENVOY])
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    limit = next(one["typed_config"] for one in manager["http_filters"] if one["name"].endswith("local_ratelimit"))

    assert limit["descriptors"][0]["token_bucket"] == {
        "max_tokens": per_minute,
        "tokens_per_fill": tokens,
        "fill_interval": interval,
    }


def test_running_an_edge_whose_files_are_missing_names_them(tmp_path: Path) -> None:
    path = _edge(tmp_path, keys=str(tmp_path / "keys.yaml"))
    result = runner.invoke(app, ["edge", "run", str(path), "--run-dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert "keys.yaml" in result.stderr
