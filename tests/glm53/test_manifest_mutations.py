"""Every leaf of every manifest, and every word that other processes than workers start with, is changed in turn.

Workers' arguments are changed in `test_recipe_mutations.py`. The lists below name what nothing else relies on.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from recipe_changes import FREE as FREE_VARIABLES
from recipe_changes import changes, leaves, other
from recipe_files import RECIPES, deployment

from glm53.deployment import Target, load
from glm53.lint.commands import documents, from_scripts
from glm53.lint.files import check
from glm53.output.shell import script
from glm53.render import kubernetes, local, slurm

FILES = kubernetes.render(deployment(hardware="gb200-nvl72"))
SERVERLESS = kubernetes.render(
    deployment(
        targets=["kubernetes"],
        tier=None,
        capacity={"policy": "serverless", "min_decode": 1, "max_decode": 4, "priority": 5},
        frontend={"busy_blocks": 0.9, "replicas": 2},
        model={"adapters": [{"name": "tuned", "uri": "file:///models/adapters/tuned", "rank": 16}]},
    )
)

#: Names that only people read, amounts, patience, and what is Kubernetes' own business.
FREE = re.compile(
    r"metadata\.labels\.|^metadata\.name$|Seconds$|failureThreshold$|backoffLimit$|readOnly$|restartPolicy$"
    r"|resources\.\w+\.(cpu|memory)$|sharedMemorySize$|tolerations\.|capabilities\.|topologyKey$|policyTypes|strategy"
    r"|podManagementPolicy$|clusterIP$|containers\.0\.(name|command\.\d)$|ports\.\d\.name$|components\.\d\.name$"
    r"|components\.2\.|\.args\.|\.env\.|interval$"
)
#: Of a decode group there may be any number; a drained node may take the master, of which there is one.
NUMBERS = {("small-decode", "spec.maxUnavailable"), ("small-tier-master", "spec.maxUnavailable")}
#: What KEDA does with its own numbers, and texts for people.
SCALING = re.compile(r"ReplicaCount$|cooldownPeriod$|triggers\.|modelName$|source\.uri$|^(value|description|preempt)")


def _caught(files: dict[str, str], name: str, objects: list[dict[str, Any]]) -> bool:
    return bool(check(files | {name: "\n---\n".join(json.dumps(obj) for obj in objects)}, "kubernetes"))


def _unseen(files: dict[str, str], name: str) -> list[str]:
    """Leaves of a file of which a change is not caught."""
    objects, unseen = documents(files[name]), []
    for at, obj in enumerate(objects):
        for path in leaves(obj):
            field = ".".join(map(str, path))
            own = (obj["metadata"]["name"], field) in NUMBERS or (files is SERVERLESS and SCALING.search(field))
            if FREE.search(field) or own:
                continue
            changed = copy.deepcopy(objects)
            inner: Any = changed[at]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = other(inner[path[-1]])
            if not _caught(files, name, changed):
                unseen.append(f"{obj['kind']} {obj['metadata']['name']} {field}")
    return unseen


@pytest.mark.parametrize("name", sorted({name for name in FILES if name.endswith(".yaml")} - {"dashboard.yaml"}))
def test_a_leaf_of_a_manifest_that_is_changed_is_caught(name: str) -> None:
    assert _unseen(FILES, name) == []


@pytest.mark.parametrize("name", ["adapters.yaml", "scaling.yaml"])
def test_a_leaf_of_what_only_some_recipes_have_is_caught(name: str) -> None:
    assert _unseen(SERVERLESS, name) == []


#: A store takes ports and lease from its master; the router listens unless it is told not to.
OWN = {
    "frontend": {"--router-kv-events", "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS"},
    "master": {"--run-dir", "--pool-port"},
    "store": {"--run-dir", "--rpc-port", "--metrics-port", "--lease"},
}


@pytest.mark.parametrize(
    ("process", "name", "kind"),
    [
        ("frontend", "graph.yaml", "DynamoGraphDeployment"),
        ("master", "tier.yaml", "Deployment"),
        ("store", "tier.yaml", "StatefulSet"),
    ],
)
def test_a_word_or_variable_of_frontend_or_tier_that_is_changed_is_caught(process: str, name: str, kind: str) -> None:
    def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
        spec = next(obj for obj in objects if obj["kind"] == kind)["spec"]
        pod = spec["components"][0]["podTemplate"] if process == "frontend" else spec["template"]
        found: dict[str, Any] = pod["spec"]["containers"][0]
        return found

    first = container(documents(FILES[name]))
    values = {one["name"]: one.get("value", "from status.podIP") for one in first["env"]}
    unseen = []
    for what, change in changes(list(first["args"]), dict(values)):
        if what.split()[0] in OWN[process] | FREE_VARIABLES:
            continue
        objects = documents(FILES[name])
        main, after = container(objects), dict(values)
        change(main["args"], after)
        kept = {one["name"]: one for one in main["env"]}
        main["env"] = [
            kept[key] if values.get(key) == value else {"name": key, "value": value} for key, value in after.items()
        ]
        if not _caught(FILES, name, objects):
            unseen.append(what)
    assert unseen == []


#: What a process has for itself: its port and threads, logs, sizes, and addresses that `other` leaves as they are.
ONE_MACHINES = re.compile(
    r"^(--http-port|--max-num-|--kv-cache-memory-bytes|--enforce-eager|DYN_LOG|DYN_SDK|NO_COLOR|PYTHONDONTWRITEBYTECODE"
    r"|OMP_NUM|VLLM_CPU_OMP|--kv-transfer-config .*transfer_log|\w+_HOST other)"
)


@pytest.mark.parametrize(
    ("target", "name"),
    [("slurm", "frontend.sh"), ("slurm", "decode-0.sh"), ("local", "01-frontend.sh"), ("local", "03-decode-0.sh")],
)
def test_a_word_or_variable_of_a_script_that_is_changed_is_caught(target: Target, name: str) -> None:
    cpu = load(next(path for path in RECIPES if path.stem == "glm53-cpu"))
    files = slurm.render(deployment()) if target == "slurm" else local.files(cpu, Path("/run"))
    (command,) = from_scripts({name: files[name]})
    program, words = list(command.argv[:3]), list(command.argv[3:])
    unseen = []
    for what, change in changes(words, dict(command.env)):
        frontends = "frontend" in name and what.split()[0] in {*OWN["frontend"], "PYTHONHASHSEED"}
        if what.split()[0] in FREE_VARIABLES or frontends or ONE_MACHINES.search(what):
            continue
        argv, env = list(words), dict(command.env)
        change(argv, env)
        if not check(files | {name: script("changed", [*program, *argv], env)}, target):
            unseen.append(what)
    assert unseen == []
