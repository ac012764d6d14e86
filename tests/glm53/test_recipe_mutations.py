"""Every value of a rendered worker is changed in turn: what must agree, and what must be as it is, is caught.

The lists below name what may differ; anything that a renderer adds later is covered until it is listed here.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from recipe_changes import FREE, Change, changes
from recipe_files import deployment

from glm53.lint.commands import documents, from_manifests, from_scripts
from glm53.lint.files import check
from glm53.output.shell import script
from glm53.render import kubernetes, slurm

RECIPE = deployment(
    hardware="gb200-nvl72",
    engine={
        "kv_cache_dtype": "nvfp4_ds_mla",
        "attention_backend": "FLASHINFER_MLA_SPARSE",
        "nvfp4_policy": "search",
        "nvfp4_kernel": "triton",
        "nvfp4_fold": True,
        "mtp_depth": 3,
    },
    kv_transfer={"block_allocation": "runs", "eviction_window": 8},
    tools={"structural_tags": "enforce", "schema_mode": "strict"},
)
GRAPH = {name: text for name, text in kubernetes.render(RECIPE).items() if name != "prepare.yaml"}
JOB = slurm.render(RECIPE)

#: What one role has for itself, and the other need not have.
ROLES_OWN = {
    "--all2all-backend",
    "--data-parallel-address",
    "--data-parallel-hybrid-lb",
    "--data-parallel-rpc-port",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--enable-expert-parallel",
    "--gpu-memory-utilization",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--tensor-parallel-size",
}


def _in_graph(role: str, change: Change) -> dict[str, str]:
    (graph,) = documents(GRAPH["graph.yaml"])
    component = next(one for one in graph["spec"]["components"] if one["name"] == role)
    main = component["podTemplate"]["spec"]["containers"][0]
    env = {one["name"]: one for one in main["env"]}
    values = {name: one.get("value", "from status.podIP") for name, one in env.items()}
    before = copy.copy(values)
    change(main["args"], values)
    main["env"] = [
        env[name] if before.get(name) == value else {"name": name, "value": value} for name, value in values.items()
    ]
    return GRAPH | {"graph.yaml": json.dumps(graph)}


def _in_job(name: str, change: Change) -> dict[str, str]:
    (command,) = from_scripts({name: JOB[name]})
    argv, env = list(command.argv[3:]), dict(command.env)
    change(argv, env)
    return JOB | {name: script("changed", [*command.argv[:3], *argv], env)}


def _cases(role: str, argv: list[str], env: dict[str, str], free: set[str]) -> list[tuple[str, Change]]:
    return [(name, change) for name, change in changes(argv, env) if name.split()[0] not in free]


def _graph_cases() -> list[tuple[str, str, Change]]:
    """Prefill and decode are one component each, so that what is a role's own has nothing to be compared with."""
    engines = [one for one in from_manifests(GRAPH) if one.kind == "engine"]
    only_prefills = {"--kv-events-config publisher", "--kv-events-config endpoint"}
    return [
        (one.role, name, change)
        for one in engines
        for name, change in _cases(one.role, list(one.argv[3:]), dict(one.env), ROLES_OWN | FREE)
        if (
            (name not in only_prefills and name != "--enable-prefix-caching removed")
            and not name.endswith(tuple(f"mooncake_tier.{key}" for key in ("medium", "model", "poll_s")))
        )
        or name == "--kv-events-config publisher"
    ]


def _job_cases() -> list[tuple[str, str, Change]]:
    """The second node of the prefill group: everything but its own ports must be as on the first."""
    name = "prefill-0-1.sh"
    (command,) = from_scripts({name: JOB[name]})
    cases = _cases("prefill", list(command.argv[3:]), dict(command.env), FREE)
    return [(name, what, change) for what, change in cases if "--kv-events-config endpoint" not in what]


def _id(value: Any) -> str:
    return value[:60] if isinstance(value, str) else "changed"


@pytest.mark.parametrize(("role", "what", "change"), _graph_cases(), ids=_id)
def test_a_value_that_one_role_of_a_graph_has_differently_is_caught(role: str, what: str, change: Change) -> None:
    assert check(_in_graph(role, change), "kubernetes"), what


@pytest.mark.parametrize(("name", "what", "change"), _job_cases(), ids=_id)
def test_a_value_that_one_node_of_a_job_has_differently_is_caught(name: str, what: str, change: Change) -> None:
    assert check(_in_job(name, change), "slurm"), what


def test_without_a_change_nothing_is_caught() -> None:
    def same(argv: list[str], env: dict[str, str]) -> None:
        return None

    for role in ("prefill", "decode"):
        assert check(_in_graph(role, same), "kubernetes") == []
    assert check(_in_job("prefill-0-1.sh", same), "slurm") == []


def test_a_finding_names_both_places_and_both_values() -> None:
    def change(argv: list[str], env: dict[str, str]) -> None:
        argv[argv.index("--block-size") + 1] = "128"

    (found,) = [one for one in check(_in_graph("decode", change), "kubernetes") if one.field == "block size"]
    assert found.code == "disagreement"
    assert "'64'" in found.message
    assert "'128'" in found.message
    assert "prefill" in found.message
    assert "decode" in found.message
    assert "engine.block_size" in found.fix
