"""Values on which prefill, decode, frontend and tier must agree, compared as the rendered files have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from glm53.deployment import Finding
from glm53.lint.commands import Command, option

__all__ = ["ENGINE_FACTS", "TIER_CONNECTORS", "connectors", "disagreements", "nixl", "tier_entry"]

#: Connectors to the DRAM tier, and where they are.
TIER_CONNECTORS = {
    "TierStoreConnector": "mooncake_tier.store_connector",
    "PrefetchOffloadingConnector": "mooncake_tier.offload",
}

Fact = Callable[[Command], Any]


def _option(name: str) -> Fact:
    return lambda command: option(command, name)


def _variable(name: str) -> Fact:
    return lambda command: command.env.get(name)


def connectors(command: Command) -> list[dict[str, Any]]:
    """The connectors of an engine: the one, or the children of MultiConnector. Empty where the JSON is damaged."""
    try:
        config = json.loads(option(command, "--kv-transfer-config") or "{}")
        inner = (
            config["kv_connector_extra_config"]["connectors"]
            if config.get("kv_connector") == "MultiConnector"
            else [config]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [one for one in inner if isinstance(one, dict) and one]


def tier_entry(command: Command) -> dict[str, Any]:
    """The entry of the connector to the DRAM tier; empty without one."""
    return next((one for one in connectors(command) if one.get("kv_connector") in TIER_CONNECTORS), {})


def nixl(command: Command) -> dict[str, Any]:
    """The entry of the connector that moves KV between roles; empty without one."""
    return next((one for one in connectors(command) if one.get("kv_connector") not in TIER_CONNECTORS), {})


def _extra(*path: str) -> Fact:
    def fact(command: Command) -> Any:
        value: Any = nixl(command).get("kv_connector_extra_config", {})
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return fact


#: Fact -> (how to read it from an engine's command, the key of the recipe that sets it).
ENGINE_FACTS: dict[str, tuple[Fact, str]] = {
    "model": (_option("--model"), "model"),
    "revision": (_option("--revision"), "model.revision"),
    "served name": (_option("--served-model-name"), "model.served_name"),
    "dtype": (_option("--dtype"), "engine.dtype"),
    "block size": (_option("--block-size"), "engine.block_size"),
    "longest sequence": (_option("--max-model-len"), "engine.max_model_len"),
    "cache dtype": (_option("--kv-cache-dtype"), "engine.kv_cache_dtype"),
    "attention backend": (_option("--attention-backend"), "engine.attention_backend"),
    "speculation": (_option("--speculative-config"), "engine.mtp_depth"),
    "prefix hash": (_option("--prefix-caching-hash-algo"), "engine"),
    "hash seed": (_variable("PYTHONHASHSEED"), "engine"),
    "NVFP4 policy": (_variable("FLASHINFER_NVFP4_POLICY"), "engine.nvfp4_policy"),
    "NVFP4 fold": (_variable("FLASHINFER_NVFP4_FOLD"), "engine.nvfp4_fold"),
    "NVFP4 kernel": (_variable("FLASHINFER_NVFP4_BACKEND"), "engine.nvfp4_kernel"),
    "connector": (lambda command: nixl(command).get("kv_connector"), "kv_transfer"),
    "connector module": (lambda command: nixl(command).get("kv_connector_module_path"), "kv_transfer"),
    "layout": (_extra("blhnc", "layout"), "kv_transfer.layout"),
    "lease": (_extra("kv_lease_duration"), "kv_transfer.lease_seconds"),
    "connector settings": (lambda command: _shared(nixl(command)), "kv_transfer"),
    "tool parser": (_option("--dyn-tool-call-parser"), "tools.call_parser"),
    "reasoning parser": (_option("--dyn-reasoning-parser"), "tools.reasoning_parser"),
    "structural tag": (_option("--dyn-structural-tag"), "tools.schema_mode"),
    "structural tags plugin": (_variable("DYNAMO_STRUCTURAL_TAGS"), "tools.structural_tags"),
    "image": (lambda command: command.image, "images.engine"),
    "LoRA rank": (_option("--max-lora-rank"), "model.adapters"),
    "LoRA adapters": (_option("--max-loras"), "model.adapters"),
    "prefix caching": (lambda command: "--enable-prefix-caching" in command.argv, "engine"),
    "NVLink across nodes": (_variable("NCCL_MNNVL_ENABLE"), "cluster.compute_domain"),
    "transports": (_variable("UCX_TLS"), "cluster.rdma"),
    "network devices": (_variable("UCX_NET_DEVICES"), "targets"),
    "network of ranks": (_variable("GLOO_SOCKET_IFNAME"), "targets"),
    "attention on the CPU": (_variable("VLLM_CPU_DSA"), "hardware"),
    "memory of NCCL": (_variable("NCCL_CUMEM_ENABLE"), "cluster.compute_domain"),
}

#: The same for every process that serves, frontends included.
SERVING_FACTS: dict[str, tuple[Fact, str]] = {
    "parser version": (_variable("DYN_PARSER_VERSION"), "tools.parser_version"),
    "namespace": (_variable("DYN_NAMESPACE"), "name"),
    "discovery": (_option("--discovery-backend"), "targets"),
    "request plane": (_option("--request-plane"), "targets"),
    "event plane": (_option("--event-plane"), "targets"),
    "event broker": (_variable("DYN_ZMQ_BROKER_URL"), "targets"),
    "metadata of models": (_variable("DYN_SELF_HOST_METADATA"), "targets"),
    "discovery by": (_variable("DYN_DISCOVERY_BACKEND"), "targets"),
    "discovery folder": (_variable("DYN_FILE_KV"), "targets"),
    "address of requests": (_variable("DYN_TCP_RPC_HOST"), "targets"),
    "address of answers": (_variable("DYN_TCP_RESPONSE_STREAM_HOST"), "targets"),
}

#: The same for every process that runs code of the plugins, the tier's included.
PLUGIN_FACTS: dict[str, tuple[Fact, str]] = {"plugins": (_variable("PYTHONPATH"), "images")}


def disagreements(commands: Sequence[Command]) -> Iterator[Finding]:
    """One finding for each value that two processes have differently, with both values."""
    engines = [command for command in commands if command.kind == "engine"]
    serving = [command for command in commands if command.kind in ("engine", "frontend")]
    plugged = [command for command in commands if command.kind not in ("frontend", "other")]
    for facts, among in ((ENGINE_FACTS, engines), (SERVING_FACTS, serving), (PLUGIN_FACTS, plugged)):
        for name, (read, home) in facts.items():
            yield from _differs(name, read, home, among)
    for role in ("prefill", "decode", "aggregated"):
        same = [command for command in engines if command.role == role]
        yield from _differs(f"arguments of {role}", _arguments, f"roles.{role}", same)
        yield from _differs(f"capture of {role}", _capture, "capture", same)
        yield from _ranks(role, same)


def _shared(entry: dict[str, Any]) -> dict[str, Any]:
    """A connector's entry without what each side, or each worker, has for itself."""
    extra = dict(entry.get("kv_connector_extra_config") or {})
    if isinstance(extra.get("blhnc"), dict):
        extra["blhnc"] = {key: value for key, value in extra["blhnc"].items() if key != "transfer_log"}
    own = ("kv_role", "kv_load_failure_policy", "kv_connector_extra_config")
    return {key: value for key, value in entry.items() if key not in own} | {"kv_connector_extra_config": extra}


def _arguments(command: Command) -> list[Any]:
    """A worker's arguments without those in which processes of one role differ: rank, sockets and logs."""
    own = ("--data-parallel-start-rank", "--kv-events-config", "--kv-transfer-config")
    kept = [word for flag, word in pairwise(["", *command.argv]) if flag not in own]
    return [*kept, [_shared(one) for one in connectors(command)]]


def _capture(command: Command) -> dict[str, str]:
    return {name: value for name, value in sorted(command.env.items()) if name.startswith("RL_CAPTURE")}


def _ranks(role: str, commands: Sequence[Command]) -> Iterator[Finding]:
    """The nodes of a group divide its ranks among them: each is served once."""
    spread = [command for command in commands if "--data-parallel-hybrid-lb" in command.argv]
    if not spread:
        return
    size, local = (int(option(spread[0], f"--data-parallel-size{end}") or 1) for end in ("", "-local"))
    starts = Counter(option(command, "--data-parallel-start-rank") for command in spread)
    if starts.keys() != {str(rank) for rank in range(0, size, local)} or len(set(starts.values())) > 1:
        yield Finding(
            "ranks",
            f"ranks of {role}",
            f"nodes begin at {dict(starts)}, for {size} ranks, {local} a node: some are served twice, or by nobody.",
            "Render again; roles and hardware decide the ranks.",
        )


def _differs(name: str, read: Fact, home: str, commands: Sequence[Command]) -> Iterator[Finding]:
    values = [(command, read(command)) for command in commands]
    for command, value in values[1:]:
        if value != values[0][1]:
            yield Finding(
                "disagreement",
                name,
                f"{values[0][0].where} has {values[0][1]!r}, {command.where} has {value!r}.",
                f"Render again; the recipe's {home} is one value for all of them.",
            )
            return
