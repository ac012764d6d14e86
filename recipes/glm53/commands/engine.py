"""A worker's command line and environment."""

from __future__ import annotations

from dataclasses import dataclass

from glm53.commands.connectors import Master, as_json, kv_transfer
from glm53.deployment import Deployment, RoleName
from glm53.deployment.roles import Role

__all__ = ["Place", "engine_arguments", "engine_environment", "serving_environment"]

#: RDMA and NVLink, and not TCP, to which UCX would otherwise fall back without an error where a fabric is missing.
_TRANSPORTS = "rc_x,rc,dc_x,dc,cuda_copy,cuda_ipc,self"


@dataclass(frozen=True)
class Place:
    """What the target decides about a worker, and the deployment does not.

    model: path of the checkpoint there. events: endpoint of KV events; vLLM binds ipc and wildcard addresses only.
    transfer_log: file for KV transfers; None writes none. placement: arguments on ranks and addresses. master: the DRAM
    tier's, where engines are told by arguments.
    """

    model: str
    events: str
    transfer_log: str | None = None
    placement: tuple[str, ...] = ()
    master: Master | None = None


def engine_arguments(deployment: Deployment, role: RoleName, place: Place) -> list[str]:
    """Arguments of ``python3 -m dynamo.vllm``, all in one fixed order."""
    engine, own = deployment.engine, getattr(deployment.roles, role)
    arguments = [
        *("--model", place.model, "--served-model-name", deployment.model.served_name),
        *("--dtype", engine.dtype, "--block-size", str(engine.block_size)),
        *("--max-model-len", str(engine.max_model_len)),
        *("--max-num-batched-tokens", str(own.max_batched_tokens or engine.max_batched_tokens)),
        *("--max-num-seqs", str(own.max_sequences or engine.max_sequences)),
        *("--kv-cache-dtype", engine.kv_cache_dtype),
        # Of equal tokens every process makes the hash that the others look for.
        *("--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256"),
        *(_on_gpus(deployment, role) if deployment.machine.gpus else _on_cpu(deployment, role)),
        *place.placement,
        *_tools(deployment),
    ]
    if role != "aggregated":
        arguments += ["--disaggregation-mode", role]
    if (transfer := kv_transfer(deployment, role, place.transfer_log, place.master)) is not None:
        arguments += ["--kv-transfer-config", as_json(transfer)]
    if role != "decode" and deployment.router == "kv":
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": place.events}
        arguments += ["--kv-events-config", as_json(events)]
    return [*arguments, *own.arguments]


def _on_cpu(deployment: Deployment, role: RoleName) -> list[str]:
    own = getattr(deployment.roles, role)
    arguments = ["--kv-cache-memory-bytes", str(int(deployment.engine.kv_cache)), "--enforce-eager"]
    if own.tensor_parallel > 1:
        arguments += ["--tensor-parallel-size", str(own.tensor_parallel)]
    return [*arguments, *_spread(own)]


def _on_gpus(deployment: Deployment, role: RoleName) -> list[str]:
    engine, own = deployment.engine, getattr(deployment.roles, role)
    arguments = [
        *("--gpu-memory-utilization", str(own.gpu_memory or engine.gpu_memory)),
        *("--tensor-parallel-size", str(own.tensor_parallel)),
        *("--attention-backend", str(engine.attention_backend)),
        *_spread(own),
    ]
    if engine.mtp_depth:
        speculation = {"method": "mtp", "num_speculative_tokens": engine.mtp_depth}
        arguments += ["--speculative-config", as_json(speculation)]
    if adapters := deployment.model.adapters:
        arguments += ["--enable-lora", "--max-lora-rank", str(_rank(max(one.rank for one in adapters)))]
        arguments += ["--max-loras", str(len(adapters))]
    return arguments


def _spread(own: Role) -> list[str]:
    """Copies of attention, and experts over all of them."""
    arguments = ["--data-parallel-size", str(own.data_parallel)] if own.data_parallel > 1 else []
    if own.expert_parallel:
        arguments += ["--enable-expert-parallel"]
    if own.all2all:
        arguments += ["--all2all-backend", own.all2all]
    return arguments


def _rank(needed: int) -> int:
    """The smallest of vLLM's LoRA ranks that holds an adapter."""
    return next(rank for rank in (1, 8, 16, 32, 64, 128, 256, 320, 512) if rank >= needed)


def _tools(deployment: Deployment) -> list[str]:
    tools = deployment.tools
    arguments: list[str] = []
    if tools.frontend == "stock":  # the other one reads calls itself, and Dynamo would read its answers once more
        arguments += ["--dyn-tool-call-parser", tools.call_parser, "--dyn-reasoning-parser", tools.reasoning_parser]
    if tools.schema_mode != "auto":
        arguments += ["--dyn-structural-tag", as_json({"schema": tools.schema_mode})]
    return arguments


def engine_environment(deployment: Deployment, role: RoleName) -> dict[str, str]:
    """Variables of a worker that do not depend on the target."""
    env = {
        "PYTHONHASHSEED": "0",
        **serving_environment(deployment),
        **getattr(deployment.roles, role).environment,
    }
    engine = deployment.engine
    if engine.nvfp4_policy:
        env["FLASHINFER_NVFP4_POLICY"] = engine.nvfp4_policy
    # Without NVFP4 rows the plugin has nothing to do, and stays out of vLLM's table of backends.
    unused = deployment.machine.gpus > 0 and engine.kv_cache_dtype != "nvfp4_ds_mla"
    if kernel := engine.nvfp4_kernel or ("off" if unused else None):
        env["FLASHINFER_NVFP4_BACKEND"] = kernel
    if engine.nvfp4_fold is not None:
        env["FLASHINFER_NVFP4_FOLD"] = "on" if engine.nvfp4_fold else "off"
    if deployment.tools.structural_tags != "off":
        env["DYNAMO_STRUCTURAL_TAGS"] = deployment.tools.structural_tags
    if deployment.model.adapters:
        env["DYN_LORA_ENABLED"] = "true"
    if deployment.machine.gpus:
        env["UCX_TLS"] = _TRANSPORTS
    return env


def serving_environment(deployment: Deployment) -> dict[str, str]:
    """Variables of every process that serves: equal parsers, nothing fetched, nothing reported."""
    return {
        "DO_NOT_TRACK": "1",
        "DYN_PARSER_VERSION": str(deployment.tools.parser_version),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
