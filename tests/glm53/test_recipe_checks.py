"""Every check of rendered files is tripped by a file that has its fault, and by that fault's code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recipe_files import RECIPES, deployment

from glm53.deployment import Target, load
from glm53.lint.commands import documents
from glm53.lint.files import check
from glm53.render import kubernetes, local, slurm

GRAPH = kubernetes.render(deployment())
JOB = slurm.render(deployment(hardware="gb200-nvl72"))
LOCAL = local.files(load(next(path for path in RECIPES if path.stem == "glm53-cpu")), Path("/run"))
NVL72 = kubernetes.render(deployment(hardware="gb200-nvl72"))
TWO = slurm.render(deployment())  # two decode groups on one node
STORE = "TierStoreConnector"

Files = dict[str, str]
Change = Callable[[dict[str, Any]], Any]


def _graph(change: Change) -> Files:
    (graph,) = documents(GRAPH["graph.yaml"])
    change({one["name"]: one for one in graph["spec"]["components"]})
    return GRAPH | {"graph.yaml": json.dumps(graph)}


def _engine(role: str, change: Change) -> Files:
    """Change a worker's container."""
    return _graph(lambda components: change(components[role]["podTemplate"]["spec"]["containers"][0]))


def _transfer(role: str, change: Change) -> Files:
    """Change a worker's ``--kv-transfer-config``."""

    def whole(main: dict[str, Any]) -> None:
        at = main["args"].index("--kv-transfer-config") + 1
        config = json.loads(main["args"][at])
        change(config)
        main["args"][at] = json.dumps(config)

    return _engine(role, whole)


def _store(change: Change) -> Files:
    def one(config: dict[str, Any]) -> None:
        change(next(c for c in config["kv_connector_extra_config"]["connectors"] if c["kv_connector"] == STORE))

    return _transfer("prefill", one)


def _section(**settings: Any) -> Files:
    """Change the plugin's settings in it."""
    return _store(lambda one: one["kv_connector_extra_config"]["mooncake_tier"].update(settings))


def _env(role: str, name: str, value: str) -> Files:
    return _engine(role, lambda main: main["env"].append({"name": name, "value": value}))


def _text(files: Files, name: str, old: str, new: str) -> Files:
    assert old in files[name]
    return files | {name: files[name].replace(old, new)}


def _without(*names: str) -> Files:
    return {name: text for name, text in GRAPH.items() if name not in names}


def _remove(main: dict[str, Any], name: str) -> None:
    main["env"] = [one for one in main["env"] if one["name"] != name]


def _second_nixl(config: dict[str, Any]) -> None:
    connectors = config["kv_connector_extra_config"]["connectors"]
    connectors.append(dict(connectors[0]))


def _object(file: str, kind: str, change: Change, files: Files = GRAPH) -> Files:
    """Change every object of a kind in a file."""
    found = documents(files[file])
    for obj in found:
        if obj["kind"] == kind:
            change(obj)
    return files | {file: "\n---\n".join(json.dumps(obj) for obj in found)}


def _of_frontend(change: Change) -> Files:
    return _engine("frontend", change)


def _said(main: dict[str, Any], flag: str, value: str) -> None:
    main["args"][main["args"].index(flag) + 1] = value


SERVERLESS = kubernetes.render(
    deployment(
        targets=["kubernetes"],
        capacity={"policy": "serverless", "min_decode": 1, "max_decode": 4},
        frontend={"busy_blocks": 0.9},
        model={"adapters": [{"name": "tuned", "uri": "file:///models/adapters/tuned", "rank": 16}]},
    )
)

CASES: list[tuple[str, Target, Files]] = [
    ("object-kind", "kubernetes", _object("disruption.yaml", "PodDisruptionBudget", lambda o: o.update(kind="Budget"))),
    ("object-schema", "kubernetes", _object("metrics.yaml", "PodMonitor", lambda o: o["spec"].update(endpoints=[]))),
    (
        "object-schema",
        "kubernetes",
        _object("compute-domain.yaml", "ComputeDomain", lambda o: o["spec"].update(numNodes=2), NVL72),
    ),
    (
        "budget",
        "kubernetes",
        _object("disruption.yaml", "PodDisruptionBudget", lambda o: o["spec"].update(maxUnavailable=9)),
    ),
    ("stores", "kubernetes", _object("tier.yaml", "StatefulSet", lambda o: o["spec"].update(replicas=7))),
    ("stores", "kubernetes", _object("tier.yaml", "Deployment", lambda o: o["spec"].update(replicas=2))),
    ("service-missing", "kubernetes", _object("tier.yaml", "StatefulSet", lambda o: o["spec"].update(serviceName="x"))),
    ("service-missing", "kubernetes", _object("tier.yaml", "Service", lambda o: o["metadata"].update(name="other"))),
    (
        "scales-nothing",
        "kubernetes",
        _object("scaling.yaml", "ScaledObject", lambda o: o["spec"]["scaleTargetRef"].update(name="x"), SERVERLESS),
    ),
    (
        "adapter-base",
        "kubernetes",
        _object("adapters.yaml", "DynamoModel", lambda o: o["spec"].update(baseModelName="x"), SERVERLESS),
    ),
    ("port-missing", "kubernetes", _text(GRAPH, "metrics.yaml", "port: system", "port: metric")),
    ("port-missing", "kubernetes", _text(GRAPH, "tier.yaml", "containerPort: 9003", "containerPort: 9004")),
    ("port-missing", "kubernetes", _text(GRAPH, "network.yaml", "port: 9090", "port: 9091")),
    ("probe-path", "kubernetes", _engine("decode", lambda main: main["livenessProbe"]["httpGet"].update(path="/up"))),
    ("gpus", "kubernetes", _engine("decode", lambda main: _said(main, "--tensor-parallel-size", "8"))),
    ("devices-differ", "kubernetes", _engine("decode", lambda main: main["resources"]["limits"].pop("rdma/ib"))),
    ("volume-missing", "kubernetes", _of_frontend(lambda main: main.update(volumeMounts=[]))),
    ("not-mounted", "kubernetes", _of_frontend(lambda main: main["volumeMounts"][0].update(mountPath="/data"))),
    ("claims-differ", "kubernetes", _text(GRAPH, "tier.yaml", "claimName: models", "claimName: other")),
    (
        "architectures",
        "kubernetes",
        _graph(lambda c: c["decode"]["podTemplate"]["spec"].update(nodeSelector={"kubernetes.io/arch": "arm64"})),
    ),
    ("frontend-address", "kubernetes", _of_frontend(lambda main: _said(main, "--http-host", "127.0.0.1"))),
    ("frontend-address", "kubernetes", _of_frontend(lambda main: _said(main, "--http-port", "8001"))),
    ("router-mode", "kubernetes", _of_frontend(lambda main: _said(main, "--router-mode", "random"))),
    ("router-events", "kubernetes", _of_frontend(lambda main: _said(main, "--router-mode", "round-robin"))),
    ("full-status", "kubernetes", _env("frontend", "DYN_HTTP_OVERLOAD_STATUS_CODE", "529")),
    ("tier-masters", "kubernetes", _text(GRAPH, "tier.yaml", "- --pool\n        - '0'", "- --pool\n        - 1MiB")),
    ("tier-pool", "kubernetes", _text(GRAPH, "tier.yaml", "65536MiB", "64")),
    ("tier-address", "kubernetes", _text(GRAPH, "tier.yaml", "$(POD_ADDRESS)", "127.0.0.1")),
    ("not-yaml", "kubernetes", GRAPH | {"graph.yaml": "a: ["}),
    ("object-twice", "kubernetes", GRAPH | {"more.yaml": GRAPH["disruption.yaml"]}),
    ("object-name", "kubernetes", _text(GRAPH, "disruption.yaml", "name: small-decode", "name: Small_decode")),
    ("object-label", "kubernetes", _text(GRAPH, "metrics.yaml", "part-of: small", "part-of: small deployment")),
    ("selects-nothing", "kubernetes", _text(GRAPH, "tier.yaml", "component: tier-master", "component: other")),
    (
        "config-missing",
        "kubernetes",
        _graph(lambda c: c["decode"]["podTemplate"]["spec"]["volumes"].append({"configMap": {"name": "absent"}})),
    ),
    ("graph-schema", "kubernetes", _graph(lambda components: components["decode"].update(replicas=-1))),
    (
        "claim-missing",
        "kubernetes",
        kubernetes.render(deployment(hardware="gb200-nvl72")) | {"compute-domain.yaml": ""},
    ),
    (
        "claim-unused",
        "kubernetes",
        _graph(lambda c: c["decode"]["podTemplate"]["spec"].update(resourceClaims=[{"name": "unused"}])),
    ),
    ("placeholder", "kubernetes", _engine("decode", lambda main: main.update(image="r/<image>:1.6.1"))),
    ("nothing-to-serve", "kubernetes", _without("graph.yaml")),
    ("roles", "kubernetes", _graph(lambda c: c["decode"]["podTemplate"]["spec"].update(containers=[]))),
    ("disagreement", "kubernetes", _engine("decode", lambda main: main["args"].extend(["--dtype", "float16"]))),
    ("connector-name", "kubernetes", _transfer("decode", lambda one: one.update(kv_connector="NixlPushConnector"))),
    ("connector-name", "kubernetes", _transfer("prefill", _second_nixl)),
    ("connector-role", "kubernetes", _transfer("decode", lambda one: one.update(kv_role="kv_both"))),
    ("connector-role", "kubernetes", _transfer("prefill", lambda one: one.update(kv_role="kv_producer"))),
    ("connector-role", "kubernetes", _store(lambda one: one.update(kv_role="kv_consumer"))),
    ("failure-policy", "kubernetes", _transfer("decode", lambda one: one.update(kv_load_failure_policy="recompute"))),
    ("failure-policy", "kubernetes", _transfer("prefill", lambda one: one.update(kv_load_failure_policy="fail"))),
    ("cpu-setting-on-gpu", "kubernetes", _env("decode", "VLLM_TARGET_DEVICE", "cpu")),
    ("disabled-check", "kubernetes", _env("decode", "STOCKPATCH_ALLOW_UNTESTED", "1")),
    ("hash-seed", "kubernetes", _engine("decode", lambda main: _remove(main, "PYTHONHASHSEED"))),
    ("side-channel", "kubernetes", _env("decode", "VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")),
    ("router-events", "kubernetes", _engine("prefill", lambda main: main["args"].append("--no-enable-prefix-caching"))),
    (
        "events-endpoint",
        "kubernetes",
        _text(GRAPH, "graph.yaml", "tcp://*:20080", "tcp://10.0.0.1:20080"),
    ),
    ("engine-image-on-frontend", "kubernetes", _text(GRAPH, "graph.yaml", "dynamo-frontend:", "vllm-runtime:")),
    ("release-lines", "kubernetes", _text(GRAPH, "graph.yaml", "dynamo-frontend:1.6.1", "dynamo-frontend:1.5.0")),
    ("image-reference", "kubernetes", _text(GRAPH, "graph.yaml", "dynamo-frontend:1.6.1", "dynamo-frontend:latest")),
    ("install-at-start", "kubernetes", _engine("decode", lambda main: main["args"].append("; pip install vllm"))),
    ("tier-missing", "kubernetes", _text(GRAPH, "tier.yaml", "mooncake_tier.cli", "mooncake_tier.other")),
    ("tier-lease", "kubernetes", _text(GRAPH, "tier.yaml", "'30'", "'9'")),
    ("tier-lease", "kubernetes", _section(lease_s=60)),
    ("tier-address", "kubernetes", _text(GRAPH, "tier.yaml", "'50051'", "'50052'")),
    ("tier-address", "kubernetes", _text(GRAPH, "tier.yaml", "small-tier-master:50051", "small-tier-master:50052")),
    ("tier-address", "kubernetes", _section(metrics="small-tier-master:9004")),
    ("tier-address", "kubernetes", _section(host="127.0.0.1")),
    ("tier-protocol", "kubernetes", _section(protocol="tcp")),
    ("tier-module", "kubernetes", _store(lambda one: one.pop("kv_connector_module_path"))),
    ("failure-policy", "kubernetes", _store(lambda one: one.pop("kv_load_failure_policy"))),
    ("tier-namespace", "kubernetes", _section(model="")),
    ("open-address", "local", _text(LOCAL, "01-frontend.sh", "--http-host 127.0.0.1", "--http-host 0.0.0.0")),
    ("open-address", "local", _text(LOCAL, "03-decode-0.sh", "CHANNEL_HOST=127.0.0.1", "CHANNEL_HOST=0.0.0.0")),
    ("disagreement", "local", _text(LOCAL, "03-decode-0.sh", "export VLLM_CPU_DSA=1\n", "")),
    ("disagreement", "local", _text(LOCAL, "01-frontend.sh", "xpub=", "xpub=tcp://127.0.0.1:9 , was=")),
    ("disagreement", "slurm", _text(JOB, "frontend.sh", "--event-plane zmq", "--event-plane nats")),
    ("gpus", "slurm", _text(JOB, "decode-0.sh", "DEVICES=0,1,2,3", "DEVICES=0,1")),
    ("gpus", "slurm", _text(TWO, "decode-1.sh", "DEVICES=4,5,6,7", "DEVICES=0,1,2,3")),
    ("ranks", "slurm", _text(JOB, "prefill-0-1.sh", "--data-parallel-start-rank 4", "--data-parallel-start-rank 0")),
    ("loopback-address", "slurm", _text(JOB, "decode-0.sh", 'RPC_HOST="${NODE_ADDRESS}"', "RPC_HOST=127.0.0.1")),
    (
        "port-clash",
        "slurm",
        slurm.render(deployment()) | {"decode-1.sh": slurm.render(deployment())["decode-0.sh"]},
    ),
]


@pytest.mark.parametrize(("code", "target", "files"), CASES, ids=[f"{one[0]}-{at}" for at, one in enumerate(CASES)])
def test_a_fault_in_a_file_is_found_by_its_code(code: str, target: Target, files: Files) -> None:
    found = check(files, target)

    assert code in {finding.code for finding in found}, found
    assert all(finding.field and finding.message.endswith(".") and finding.fix.endswith(".") for finding in found)


def test_files_without_a_fault_have_no_finding() -> None:
    assert check(GRAPH, "kubernetes") == []
    assert check(JOB, "slurm") == []
    assert check(LOCAL, "local") == []


def test_every_code_of_every_check_and_rule_has_a_case() -> None:
    """A check that nothing trips could be one that nothing can trip."""
    root = Path(__file__).parents[2] / "recipes" / "glm53"
    named = re.compile(r'(?:_found|_tier_found|Finding)\(\s*"([a-z0-9-]+)"')
    codes = {
        code
        for folder in ("lint", "deployment")
        for path in (root / folder).rglob("*.py")
        for code in named.findall(path.read_text(encoding="utf-8"))
    }
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    sources = "".join(path.read_text(encoding="utf-8") for path in others)

    assert len(codes) > 60
    assert {code for code in codes if f'"{code}"' not in sources} <= {code for code, _, _ in CASES}
