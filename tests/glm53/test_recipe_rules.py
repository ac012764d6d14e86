"""Recipes that cannot work: each combination is a finding with its code and field, before anything is rendered."""

from __future__ import annotations

from typing import Any

import pytest
from recipe_files import deployment, raw

from glm53.deployment import DeploymentError, parse
from glm53.deployment.rules.overrides import OWNED_ARGUMENTS, OWNED_VARIABLES

NVFP4 = {"kv_cache_dtype": "nvfp4_ds_mla", "attention_backend": "FLASHMLA_SPARSE"}
DIGEST = "sha256:" + "a" * 64
BOTH = {"dynamo-frontend": DIGEST, "vllm-runtime": DIGEST}
ADAPTER = {"name": "glm-5.3", "uri": "hf://org/a"}
SERVERLESS = {"policy": "serverless", "min_decode": 1, "max_decode": 4}


def _prefill(**settings: Any) -> dict[str, Any]:
    return {"roles": {"prefill": {"data_parallel": 8, "expert_parallel": True, **settings}}}


def _decode(**settings: Any) -> dict[str, Any]:
    return {"roles": {"decode": {"tensor_parallel": 4, **settings}}}


def _local(**overrides: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "model": {"path": "model", "served_name": "tiny"},
        "workers": {"prefill": 1, "decode": 1},
        **overrides,
    }


CASES: list[tuple[dict[str, Any], str, str]] = [
    # Text that no rendered line can carry.
    (raw(cluster={"rdma": "rdma/ib", "shared": "/a\nb"}), "unprintable", "cluster.shared"),
    (raw(cluster={"rdma": "rdma/ib", "shared": "a/b"}), "shared-folder", "cluster.shared"),
    (raw(cluster={"rdma": "rdma/ib", "shared": "/my shared"}), "shared-folder", "cluster.shared"),
    (raw(cluster={"rdma": "rdma/ib", "partition": "a\n#SBATCH --qos=b"}), "bad-value", "cluster.partition"),
    (raw(cluster={"rdma": "rdma/ib", "account": "a b"}), "bad-value", "cluster.account"),
    (raw(tools={"call_parser": "glm\0"}), "unprintable", "tools.call_parser"),
    (raw(tools={"call_parser": "glm\ud800"}), "unprintable", "tools.call_parser"),
    # Roles and machines.
    (raw(targets=["local"]), "target-hardware", "targets"),
    (raw(hardware="cpu"), "target-hardware", "targets"),
    (raw(targets=[]), "bad-value", "targets"),
    (raw(hardware="h100"), "bad-value", "hardware"),
    (_local(roles={"decode": {"tensor_parallel": 9}}), "cpu-parallel", "roles.decode"),
    (_local(roles={"prefill": {"data_parallel": 2}}), "experts-copied", "roles.prefill.expert_parallel"),
    (
        _local(roles={"prefill": {"data_parallel": 2, "expert_parallel": True, "all2all": "deepep_low_latency"}}),
        "all2all-on-cpu",
        "roles.prefill.all2all",
    ),
    (raw(**_decode(tensor_parallel=16)), "tensor-across-nodes", "roles.decode.tensor_parallel"),
    (raw(**_decode(tensor_parallel=3)), "heads", "roles.decode.tensor_parallel"),
    (raw(**_prefill(data_parallel=12)), "uneven-nodes", "roles.prefill"),
    (raw(**_prefill(expert_parallel=False)), "experts-copied", "roles.prefill.expert_parallel"),
    (raw(**_decode(all2all="deepep_low_latency")), "all2all-without-experts", "roles.decode.all2all"),
    (
        raw(**_prefill(data_parallel=16, all2all="flashinfer_nvlink_one_sided")),
        "all2all-fabric",
        "roles.prefill.all2all",
    ),
    (raw(model={"weights": None}), "weights-unknown", "model.weights"),
    (raw(model={"weights": "fp8"}), "weights-do-not-fit", "roles.decode"),
    (raw(model={"weights": "bf16"}), "weights-do-not-fit", "roles.prefill"),
    # The cache.
    (raw(engine={"kv_cache_dtype": "auto"}), "cache-dtype", "engine.kv_cache_dtype"),
    (raw(engine={"attention_backend": None}), "no-backend", "engine.attention_backend"),
    (raw(engine={"kv_cache_dtype": "fp8_ds_mla"}), "backend-dtype", "engine.attention_backend"),
    (raw(hardware="h200"), "backend-hardware", "engine.attention_backend"),
    (raw(engine={"block_size": 128}), "block-size", "engine.block_size"),
    (raw(engine={**NVFP4, "nvfp4_policy": "search"}), "policy-of-stock", "engine.nvfp4_policy"),
    (raw(engine={**NVFP4, "nvfp4_fold": True}), "policy-of-stock", "engine.nvfp4_fold"),
    (raw(engine={"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_kernel": "off"}), "no-nvfp4-reader", "engine.nvfp4_kernel"),
    (raw(engine={**NVFP4, "nvfp4_kernel": "off"}), "no-nvfp4-reader", "engine.nvfp4_kernel"),
    (raw(engine={"nvfp4_fold": True}), "policy-without-nvfp4", "engine.nvfp4_fold"),
    (raw(engine={"nvfp4_kernel": "auto"}), "policy-without-nvfp4", "engine.nvfp4_kernel"),
    (raw(kv_transfer={"on_failure": "recompute"}), "failure-policy", "kv_transfer.on_failure"),
    (_local(engine={"attention_backend": "FLASHMLA_SPARSE"}), "backend-on-cpu", "engine.attention_backend"),
    (_local(engine={"mtp_depth": 1}), "mtp-on-cpu", "engine.mtp_depth"),
    # Serving.
    (raw(**_decode(max_batched_tokens=4)), "batch", "roles.decode.max_batched_tokens"),
    (
        raw(engine={"mtp_depth": 3, "max_sequences": 32}, **_decode(max_batched_tokens=64)),
        "batch",
        "roles.decode.max_batched_tokens",
    ),
    (raw(tier={"memory": "64GiB", "lease_seconds": 9}), "tier-lease", "tier.lease_seconds"),
    (raw(tier={"memory": "64GiB", "lease_seconds": 601}), "tier-lease", "tier.lease_seconds"),
    (raw(tier={"memory": "1GiB"}), "tier-memory", "tier.memory"),
    (_local(tier={"memory": "64GiB"}), "tier-protocol", "tier.protocol"),
    (_local(tier={"memory": "64GiB", "protocol": "tcp", "chunk_tokens": 100}), "tier-chunk", "tier.chunk_tokens"),
    (raw(capacity={"max_decode": 4}), "reserved-range", "capacity"),
    (raw(capacity=SERVERLESS), "serverless-target", "capacity.policy"),
    (raw(capacity={**SERVERLESS, "max_decode": 1}, targets=["kubernetes"]), "serverless-range", "capacity"),
    (raw(capacity=SERVERLESS, targets=["kubernetes"]), "serverless-admission", "frontend.busy_blocks"),
    (
        raw(frontend={"busy_prefill_tokens": 9}, router="round-robin"),
        "busy-prefill-router",
        "frontend.busy_prefill_tokens",
    ),
    (raw(capacity={"priority": 1}, cluster={"priority_class": "own"}), "two-priorities", "capacity.priority"),
    (raw(capacity={"priority": 1}, targets=["slurm"]), "priority-target", "capacity.priority"),
    (_local(frontend={"replicas": 2}), "local-frontends", "frontend.replicas"),
    (raw(tools={"frontend": "structural_tags"}), "frontend-on-cluster", "tools.frontend"),
    (raw(ports={"http": 9090}), "port-clash", "ports.system"),
    (raw(ports={"side_channel": 9085}), "port-clash", "ports.system"),
    (raw(ports={"kv_events": 65530}), "port-clash", "ports.kv_events"),
    (raw(ports={"system": 40000}), "system-port", "ports.system"),
    (raw(ports={"http": 8080}), "operator-port", "ports.http"),
    # Supply.
    (raw(release="1.5.0"), "unknown-release", "release"),
    (raw(release="latest"), "unknown-release", "release"),
    (raw(model={"path": "tuned"}), "model-source", "model"),
    (raw(model={"repository": None}), "model-source", "model"),
    (_local(model={"repository": "a/b", "served_name": "x"}), "model-source", "model.repository"),
    (raw(model={"repository": None, "path": "/tuned"}), "model-outside-volume", "model.path"),
    (raw(model={"repository": None, "path": "../tuned"}), "model-outside-volume", "model.path"),
    (raw(model={"repository": None, "path": "t", "revision": "0" * 40}), "revision-of-folder", "model.revision"),
    (raw(model={"repository": None, "path": "t", "make": {}}), "model-make", "model.make"),
    (raw(model={"revision": "main"}), "bad-value", "model.revision"),
    (raw(model={"adapters": [ADAPTER]}, targets=["kubernetes"]), "adapter-name", "model.adapters"),
    (raw(model={"adapters": [{**ADAPTER, "name": "a"}]}), "adapter-target", "model.adapters"),
    (raw(images={"frontend": "vllm-runtime"}), "engine-image-on-frontend", "images.frontend"),
    (raw(images={"engine": "vllm-runtime:1.5.0"}), "image-name", "images.engine"),
    (raw(images={"digests": {"other": DIGEST}}), "unused-digest", "images.digests.other"),
    (raw(images={"digests": BOTH}), "same-digest", "images.digests"),
    (raw(images={"digests": {"vllm-runtime": "sha256:abc"}}), "bad-value", "images.digests.vllm-runtime"),
    (raw(cluster={"rdma": None}), "no-fabric", "cluster.rdma"),
    (raw(images={"registry": "your-registry/dynamo"}), "placeholder", "images.registry"),
    (raw(model={"served_name": "<model>"}), "placeholder", "model.served_name"),
    # One role's copies of what all roles share.
    (raw(**_decode(block_size=128)), "agreed-value", "roles.decode.block_size"),
    (raw(**_decode(kv_cache_dtype="fp8")), "agreed-value", "roles.decode.kv_cache_dtype"),
    (raw(**_decode(layout="stock")), "agreed-value", "roles.decode.layout"),
    (raw(**_decode(chunk=1)), "unknown-key", "roles.decode.chunk"),
    (raw(**_decode(environment={"STOCKPATCH_ALLOW_UNTESTED": "1"})), "disabled-check", "roles.decode.environment"),
    (raw(**_decode(environment={"HF_TOKEN": "hf_abc"})), "secret-in-recipe", "roles.decode.environment"),
]


@pytest.mark.parametrize(
    ("data", "code", "field"), CASES, ids=[f"{code}-{at}" for at, (_, code, _) in enumerate(CASES)]
)
def test_refuses_what_cannot_work(data: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        parse(data)

    found = [one for one in caught.value.findings if one.code == code and one.field.startswith(field)]
    assert found, caught.value
    for finding in found:
        assert finding.message.endswith(".")
        assert finding.fix.endswith(".")


def test_the_recipe_that_these_change_is_itself_without_findings() -> None:
    assert deployment().findings() == []
    assert parse(_local()).findings() == []


@pytest.mark.parametrize("flag", sorted(OWNED_ARGUMENTS))
@pytest.mark.parametrize("spelling", ["{}", "{}=1", "{_}"])
def test_an_argument_that_a_key_sets_cannot_be_one_roles(flag: str, spelling: str) -> None:
    argument = spelling.format(flag, _=flag[:2] + flag[2:].replace("-", "_"))
    with pytest.raises(DeploymentError) as caught:
        parse(raw(**_decode(arguments=[argument, "1"])))

    assert {finding.code for finding in caught.value.findings} == {"agreed-value"}


@pytest.mark.parametrize("name", sorted(OWNED_VARIABLES))
def test_a_variable_that_a_key_sets_cannot_be_one_roles(name: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        parse(raw(**_decode(environment={name.replace("*", "_READER"): "1"})))

    assert "agreed-value" in {finding.code for finding in caught.value.findings}


def test_other_arguments_and_variables_of_one_role_reach_it_alone() -> None:
    from glm53.lint.commands import from_manifests
    from glm53.render import kubernetes

    recipe = deployment(**_decode(arguments=["--seed", "1"], environment={"NCCL_DEBUG": "INFO"}), workers={"decode": 1})
    engines = {one.role: one for one in from_manifests(kubernetes.render(recipe)) if one.kind == "engine"}

    assert engines["decode"].argv[-2:] == ("--seed", "1")
    assert engines["decode"].env["NCCL_DEBUG"] == "INFO"
    assert "--seed" not in engines["prefill"].argv


def test_off_needs_no_quotes_in_yaml() -> None:
    """YAML 1.1 reads it as a boolean."""
    rows = {"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_kernel": False}
    recipe = parse(_local(tools={"structural_tags": False}, engine=rows))

    assert (recipe.tools.structural_tags, recipe.engine.nvfp4_kernel) == ("off", "off")


def test_the_nvfp4_plugin_is_off_where_no_row_is_nvfp4() -> None:
    from glm53.commands.engine import engine_environment

    def backend(**engine: Any) -> str | None:
        return engine_environment(deployment(engine=engine), "decode").get("FLASHINFER_NVFP4_BACKEND")

    assert backend() == "off"
    assert backend(kv_cache_dtype="nvfp4_ds_mla") is None
    assert backend(kv_cache_dtype="nvfp4_ds_mla", nvfp4_kernel="triton") == "triton"
    assert "FLASHINFER_NVFP4_BACKEND" not in engine_environment(parse(_local()), "decode")


def test_every_argument_of_a_rendered_worker_belongs_to_a_key() -> None:
    """Otherwise a role could be given a second copy of it, of which the parser silently takes the last."""
    from glm53.lint.commands import from_manifests, from_scripts
    from glm53.render import kubernetes, slurm

    recipe = deployment(
        engine={"mtp_depth": 2}, model={"adapters": [{"name": "a", "uri": "hf://o/a"}]}, targets=["kubernetes"]
    )
    for command in [*from_manifests(kubernetes.render(recipe)), *from_scripts(slurm.render(deployment()))]:
        if command.kind == "engine":
            flags = {word for word in command.argv if word.startswith("--")}
            assert flags <= OWNED_ARGUMENTS.keys()
