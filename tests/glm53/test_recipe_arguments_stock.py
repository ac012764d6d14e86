"""Every rendered command line of every shipped recipe, read by the argument parsers of the installed releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest
from recipe_files import NAMES, TARGETS, deployment, files

from glm53.deployment import Target, load
from glm53.deployment.facts import RELEASES
from glm53.lint.commands import Command, from_manifests, from_scripts
from glm53.render import kubernetes

RELEASE = "1.6.1"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


pytestmark = pytest.mark.skipif(
    _installed("ai-dynamo") != RELEASE, reason=f"needs ai-dynamo {RELEASE}: make env installs it"
)

Answers = dict[tuple[str, str], list[tuple[Command, dict[str, Any]]]]


def _commands(path: Path, target: Target) -> list[Command]:
    rendered = files(path, target)
    return from_manifests(rendered) if target == "kubernetes" else from_scripts(rendered)


def _asked(command: Command) -> dict[str, Any]:
    module = {"engine": "dynamo.vllm", "frontend": "dynamo.frontend"}[command.kind]
    argv = list(command.argv[command.argv.index(module) + 1 :])
    if "--model" in argv:  # vLLM looks for a folder, and this machine has none of the cluster's
        argv[argv.index("--model") + 1] = str(Path(__file__).parent)
    # What the recipe sets for the parsers; not what would make this process another machine's.
    env = {key: value for key, value in command.env.items() if key.startswith(("DYN_PARSER", "DYN_NAMESPACE"))}
    return {"kind": command.kind, "argv": argv, "env": env}


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Recipe and target -> each command with what the parsers read; one process for all of them."""
    labelled = [
        ((path.stem, str(target)), command)
        for path, target in TARGETS
        for command in _commands(path, target)
        if command.kind in ("engine", "frontend")
    ]
    adapters = {"adapters": [{"name": "tuned", "uri": "hf://org/adapter", "rank": 24}]}
    tuned = deployment(model=adapters, targets=["kubernetes"], tools={"schema_mode": "strict"})
    labelled += [
        (("adapter", ""), command) for command in from_manifests(kubernetes.render(tuned)) if command.kind == "engine"
    ]
    wrong = [{"kind": "engine", "argv": ["--model", "m", "--kv-cache-layout", "BLHNC"], "env": {}}]
    program = Path(__file__).with_name("stock_parsers.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps([_asked(command) for _, command in labelled] + wrong),
        env={**os.environ, "VLLM_CPU_DSA": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    found: Answers = {("wrong", ""): [(labelled[0][1], read[-1])]}
    for (label, command), answer in zip(labelled, read, strict=False):
        found.setdefault(label, []).append((command, answer))
    return found


def test_an_argument_that_does_not_exist_is_refused(answers: Answers) -> None:
    """The negative control of this file."""
    assert answers[("wrong", "")][0][1] == {"error": "SystemExit: 2"}


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_workers_arguments_are_read_as_the_recipe_means_them(answers: Answers, path: Path, target: Target) -> None:
    recipe = load(path)
    workers = [(command, read) for command, read in answers[(path.stem, target)] if command.kind == "engine"]
    assert {command.role for command, _ in workers} == {name for name, _, _ in recipe.served()}
    for command, read in workers:
        role = getattr(recipe.roles, command.role)
        assert "error" not in read, (command.where, read)
        expected = {
            "mode": command.role,
            "parsers": ["glm47", "glm45"],
            "publishes_events": command.role == "prefill",
            "protocol": "NixlConnectorProtocol",
            "block_size": 64,
            "cache_dtype": recipe.engine.kv_cache_dtype,
            "backend": str(recipe.engine.attention_backend),
            "max_model_len": recipe.engine.max_model_len,
            "tensor": role.tensor_parallel,
            "data": role.data_parallel,
            "experts": role.expert_parallel,
            "hash": "sha256",
            "caching": True,
            "policy": "recompute" if recipe.tier and command.role == "prefill" else "fail",
        }
        assert {key: read[key] for key in expected} == expected
        depth = recipe.engine.mtp_depth
        assert read["speculation"] == ({"method": "mtp", "num_speculative_tokens": depth} if depth else None)
        if role.all2all:
            assert read["all2all"] == role.all2all


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=NAMES)
def test_frontends_arguments_are_read_as_the_recipe_means_them(answers: Answers, path: Path, target: Target) -> None:
    recipe = load(path)
    ((_, read),) = [one for one in answers[(path.stem, target)] if one[0].kind == "frontend"]

    assert read == {
        "router": "kv",
        "events": True,
        "sync": recipe.frontend.replicas > 1,
        "port": 8000,
        "session": recipe.frontend.session_seconds,
        "retries": recipe.frontend.retries,
        "busy": recipe.frontend.busy_blocks,
        "busy_prefill": recipe.frontend.busy_prefill_tokens,
    }


def test_the_nodes_of_a_group_under_slurm_serve_all_its_ranks_once(answers: Answers) -> None:
    ranks = [
        range(read["start_rank"], read["start_rank"] + read["local"])
        for command, read in answers[("glm53-h200", "slurm")]
        if command.role == "prefill" and command.kind == "engine"
    ]

    assert [list(one) for one in ranks] == [list(range(8)), list(range(8, 16))]


def test_adapters_and_strict_schemas_reach_the_worker(answers: Answers) -> None:
    for _, read in answers[("adapter", "")]:
        assert (read["lora"], read["schema"]) == ([True, 32], "strict")


def test_the_release_pins_what_the_table_says() -> None:
    pins = [text.partition(";")[0].strip() for text in requires("ai-dynamo") or [] if "extra == 'vllm'" in text]

    assert f"nixl[cu13]=={RELEASES[RELEASE].nixl}" in pins
    assert any(pin.startswith("vllm[") and pin.endswith(f"=={RELEASES[RELEASE].vllm}") for pin in pins)
