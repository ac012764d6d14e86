"""Further arguments and variables of one role: nothing that another key sets, no switched-off check, no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment

__all__ = ["OWNED_ARGUMENTS", "OWNED_VARIABLES", "findings"]

#: Engine argument -> the key of the recipe that sets it.
OWNED_ARGUMENTS = {
    "--all2all-backend": "roles.ROLE.all2all",
    "--attention-backend": "engine.attention_backend",
    "--block-size": "engine.block_size",
    "--custom-jinja-template": "model",
    "--data-parallel-address": "roles.ROLE.data_parallel",
    "--data-parallel-hybrid-lb": "roles.ROLE.data_parallel",
    "--data-parallel-rpc-port": "ports.data_parallel",
    "--data-parallel-size": "roles.ROLE.data_parallel",
    "--data-parallel-size-local": "roles.ROLE.data_parallel",
    "--data-parallel-start-rank": "roles.ROLE.data_parallel",
    "--disaggregation-mode": "workers",
    "--discovery-backend": "targets",
    "--distributed-executor-backend": "roles.ROLE",
    "--dtype": "engine.dtype",
    "--dyn-reasoning-parser": "tools.reasoning_parser",
    "--dyn-structural-tag": "tools.schema_mode",
    "--dyn-tool-call-parser": "tools.call_parser",
    "--enable-expert-parallel": "roles.ROLE.expert_parallel",
    "--enable-lora": "model.adapters",
    "--enable-prefix-caching": "router",
    "--event-plane": "targets",
    "--gpu-memory-utilization": "engine.gpu_memory",
    "--kv-cache-dtype": "engine.kv_cache_dtype",
    "--kv-cache-memory-bytes": "engine.kv_cache",
    "--kv-events-config": "router",
    "--kv-transfer-config": "kv_transfer",
    "--max-lora-rank": "model.adapters",
    "--max-loras": "model.adapters",
    "--max-model-len": "engine.max_model_len",
    "--max-num-batched-tokens": "roles.ROLE.max_batched_tokens",
    "--max-num-seqs": "roles.ROLE.max_sequences",
    "--model": "model",
    "--no-enable-prefix-caching": "router",
    "--prefix-caching-hash-algo": "engine",
    "--request-plane": "targets",
    "--revision": "model.revision",
    "--served-model-name": "model.served_name",
    "--speculative-config": "engine.mtp_depth",
    "--tensor-parallel-size": "roles.ROLE.tensor_parallel",
    "-dp": "roles.ROLE.data_parallel",
    "-tp": "roles.ROLE.tensor_parallel",
}

#: Variable, or prefix of variables ending in ``*`` -> the key of the recipe that sets it.
OWNED_VARIABLES = {
    "DYNAMO_STRUCTURAL_TAGS*": "tools.structural_tags",
    "DYN_DISCOVERY_BACKEND": "targets",
    "DYN_NAMESPACE": "name",
    "DYN_PARSER_VERSION": "tools.parser_version",
    "DYN_STRUCTURAL_TAG": "tools.schema_mode",
    "DYN_SYSTEM_PORT": "ports.system",
    "DYN_VLLM_DISAGGREGATION_MODE": "workers",
    "FLASHINFER_NVFP4_BACKEND": "engine.nvfp4_kernel",
    "FLASHINFER_NVFP4_FOLD": "engine.nvfp4_fold",
    "FLASHINFER_NVFP4_POLICY": "engine.nvfp4_policy",
    "MOONCAKE_CONFIG_PATH": "tier",
    "PYTHONHASHSEED": "engine",
    "RL_CAPTURE*": "capture",
    "PYTHONPATH": "images",
    "UCX_TLS": "cluster.rdma",
    "VLLM_KV_CACHE_LAYOUT": "kv_transfer.layout",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "ports.side_channel",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "ports.side_channel",
}

_CHECKS = ("FLASHINFER_DISABLE_VERSION_CHECK", "STOCKPATCH_ALLOW_UNTESTED")
_CPU_ONLY = ("VLLM_CPU_", "CUDA_VISIBLE_DEVICES", "VLLM_TARGET_DEVICE")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL")


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with `roles.ROLE.arguments` and `roles.ROLE.environment`."""
    for name, role, _ in deployment.served():
        for argument in role.arguments:
            flag = argument.partition("=")[0].replace("_", "-")
            if home := OWNED_ARGUMENTS.get(flag):
                yield _owned(f"roles.{name}.arguments", argument, home.replace("ROLE", name))
        for variable, value in role.environment.items():
            yield from _variable(deployment, f"roles.{name}.environment.{variable}", variable, value)


def _variable(deployment: Deployment, field: str, variable: str, value: str) -> Iterator[Finding]:
    for owned, home in OWNED_VARIABLES.items():
        if variable == owned or (owned.endswith("*") and variable.startswith(owned[:-1])):
            yield _owned(field, variable, home)
    if variable in _CHECKS:
        yield Finding(
            "disabled-check",
            field,
            "it switches off a check of versions, so that a mismatch would show as wrong answers.",
            "Remove it and use the releases that belong together.",
        )
    if deployment.machine.gpus and variable.startswith(_CPU_ONLY):
        yield Finding(
            "cpu-setting-on-gpu",
            field,
            f"{value!r} can make vLLM leave the GPU for the CPU, or hide it, without an error.",
            "Remove it; the hardware and the renderer decide that.",
        )
    if variable == "VLLM_PLUGINS" and not {"dynamo_structural_tags", "flashinfer_nvfp4"} <= set(value.split(",")):
        yield Finding(
            "plugins-left-out",
            field,
            f"{value!r}: vLLM loads no plugin that this list lacks, without a word.",
            "Remove it, or name dynamo_structural_tags, flashinfer_nvfp4 and dynamo_nixl_telemetry in it.",
        )
    if _SECRET.search(variable):
        yield Finding(
            "secret-in-recipe",
            field,
            "a recipe is no place for a secret.",
            "Put it into a Secret of the cluster, and name that in cluster.hub_secret.",
        )


def _owned(field: str, seen: str, home: str) -> Finding:
    return Finding(
        "agreed-value",
        field,
        f"{seen} would be set twice, and one role's copy could differ from what the others have.",
        f"Set {home}.",
    )
