"""What would go wrong at or after the start, seen in the rendered processes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from glm53.deployment import Finding
from glm53.lint import tier
from glm53.lint.agreement import TIER_CONNECTORS, connectors, nixl, tier_entry
from glm53.lint.commands import Command, option

__all__ = ["problems"]

_LOOPBACK = ("", "localhost", "127.0.0.1", "0.0.0.0", "::1")
#: What recipes route by, what clients try again after, and where Dynamo's operator looks for a frontend.
_ROUTERS = ("kv", "round-robin")
_FULL = ("429", "503")
_OPERATORS_PORT = "8000"
#: Variables that tell a process of one machine where to listen.
_LISTENING = ("DYN_SYSTEM_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
_OFF = {"FLASHINFER_DISABLE_VERSION_CHECK", "STOCKPATCH_ALLOW_UNTESTED"}


def problems(commands: Sequence[Command], *, cluster: bool) -> Iterator[Finding]:
    """cluster: whether the processes run on different machines."""
    engines = [command for command in commands if command.kind == "engine"]
    frontends = [command for command in commands if command.kind == "frontend"]
    if not engines or not frontends:
        yield Finding("nothing-to-serve", "files", "there is no engine, or no frontend.", "Render the recipe again.")
    roles = sorted({command.role for command in engines})
    if roles not in (["aggregated"], ["decode", "prefill"]):
        yield Finding("roles", "files", f"workers are {roles}: prefill and decode need each other.", "Render again.")
    for command in engines:
        yield from _connector(command)
        if cluster:
            yield from _cluster(command)
    for command in frontends:
        yield from _frontend(command, cluster=cluster)
    for command in [] if cluster else [*frontends, *engines]:
        yield from _loopback(command)
    yield from _devices(engines)
    yield from _events(engines, frontends)
    yield from _images(commands)
    yield from _ports(commands)
    yield from tier.problems(commands, engines, cluster=cluster)
    for command in commands:
        yield from _start(command)


def _connector(command: Command) -> Iterator[Finding]:
    entry, role, whole = nixl(command), command.role, _transfer(command)
    expected = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(role)
    if expected is None:
        return
    moving = [one for one in connectors(command) if one.get("kv_connector") not in TIER_CONNECTORS]
    if len(moving) != 1 or entry.get("kv_connector") != "NixlConnector":
        names = [one.get("kv_connector") for one in moving]
        yield _found("connector-name", command, f"{names} move KV to decode; Dynamo takes exactly one NixlConnector.")
    if entry.get("kv_role") != expected:
        yield _found("connector-role", command, f"kv_role={entry.get('kv_role')!r} on {role}, which is {expected}.")
    policy, tiered = whole.get("kv_load_failure_policy"), bool(tier_entry(command))
    if tiered and whole.get("kv_role") != "kv_both":
        yield _found(
            "connector-role", command, f"kv_role={whole.get('kv_role')!r} of MultiConnector, which is kv_both."
        )
    if policy != "fail" and (role == "decode" or not tiered):
        yield _found("failure-policy", command, f"kv_load_failure_policy={policy!r}: lost KV would go unnoticed.")
    if policy != "recompute" and tiered and role == "prefill":
        why = "a block that the tier lost would end its request"
        yield _found("failure-policy", command, f"kv_load_failure_policy={policy!r}: {why}.")


def _cluster(command: Command) -> Iterator[Finding]:
    for name in ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"):
        if command.env.get(name, "from the operator") in _LOOPBACK:
            yield _found("loopback-address", command, f"{name}={command.env[name]!r}: no other node reaches it.")
    host = command.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "")
    if command.role != "aggregated" and host in _LOOPBACK:
        yield _found(
            "side-channel",
            command,
            f"VLLM_NIXL_SIDE_CHANNEL_HOST={host!r}: prefill would tell decode to look on decode's own machine.",
        )
    if cpu := sorted(name for name in command.env if name.startswith("VLLM_CPU_") or name == "VLLM_TARGET_DEVICE"):
        yield _found("cpu-setting-on-gpu", command, f"{cpu[0]} can make vLLM serve on the CPU without an error.")
    if command.env.get("PYTHONHASHSEED") is None:
        yield _found("hash-seed", command, "PYTHONHASHSEED is not set.")


def _loopback(command: Command) -> Iterator[Finding]:
    """On one machine nothing is reached from outside."""
    listening = {name: command.env.get(name) for name in _LISTENING}
    if command.kind == "frontend":
        listening["--http-host"] = option(command, "--http-host")
    elif command.role != "aggregated":
        listening["VLLM_NIXL_SIDE_CHANNEL_HOST"] = command.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST")
    for name, host in listening.items():
        if host != "127.0.0.1":
            yield _found("open-address", command, f"{name}={host!r}: other machines would reach it.")


def _devices(engines: Sequence[Command]) -> Iterator[Finding]:
    """Processes that share a node have GPUs of their own, as many as their ranks."""
    taken: Counter[tuple[str, str]] = Counter()
    for command in engines:
        if (given := command.env.get("CUDA_VISIBLE_DEVICES")) is None:
            continue
        gpus = given.split(",")
        taken.update((command.host, gpu) for gpu in gpus)
        ranks = option(command, "--data-parallel-size-local") or option(command, "--data-parallel-size")
        needed = int(option(command, "--tensor-parallel-size") or 1) * int(ranks or 1)
        if len(gpus) != needed:
            yield _found("gpus", command, f"it sees the GPUs {given} and has {needed} ranks.")
    for (host, gpu), count in sorted(taken.items()):
        if count > 1:
            yield Finding("gpus", host, f"{count} processes use GPU {gpu}.", "Render the recipe again.")


def _frontend(command: Command, *, cluster: bool) -> Iterator[Finding]:
    """What clients reach: its address and port, how it routes, and what it answers when all is full."""
    host, port, mode = (option(command, name) for name in ("--http-host", "--http-port", "--router-mode"))
    if cluster and host != "0.0.0.0":
        yield _found("frontend-address", command, f"--http-host {host}: clients on other nodes do not reach it.")
    if command.image and not command.host and port != _OPERATORS_PORT:
        yield _found("frontend-address", command, f"--http-port {port}: probes and services go to {_OPERATORS_PORT}.")
    if mode not in _ROUTERS:
        yield _found("router-mode", command, f"--router-mode {mode} is none of {', '.join(_ROUTERS)}.")
    status = command.env.get("DYN_HTTP_OVERLOAD_STATUS_CODE")
    if status not in _FULL:
        yield _found("full-status", command, f"a full deployment answers {status}, after which few clients try again.")


def _events(engines: Sequence[Command], frontends: Sequence[Command]) -> Iterator[Finding]:
    """A KV router without events of what is cached routes blindly, and says nothing."""
    routed = [command for command in frontends if option(command, "--router-mode") == "kv"]
    if not routed:
        for command in engines:
            if _json(option(command, "--kv-events-config")).get("enable_kv_cache_events"):
                yield _found("router-events", command, "it publishes what it caches, and no router listens.")
        return
    for command in routed:
        if "--no-router-kv-events" in command.argv:
            yield _found("router-events", command, "the router is told not to listen to KV events.")
    for command in engines:
        if command.role == "decode":
            continue
        config = _json(option(command, "--kv-events-config"))
        if not config.get("enable_kv_cache_events") or config.get("publisher") != "zmq":
            yield _found("router-events", command, "the KV router gets no event from it, and would see no cache hit.")
        elif not re.match(r"ipc://|tcp://\*:\d+$", str(config.get("endpoint"))):
            yield _found(
                "events-endpoint",
                command,
                f"vLLM does not bind {config.get('endpoint')!r}; nothing would listen there, without an error.",
            )
        if "--no-enable-prefix-caching" in command.argv:
            yield _found("router-events", command, "without prefix caching there is nothing to route to.")


def _images(commands: Sequence[Command]) -> Iterator[Finding]:
    images = {command.kind: command.image for command in commands if command.image}
    engine, frontend = images.get("engine"), images.get("frontend")
    if engine and engine == frontend:
        yield Finding(
            "engine-image-on-frontend",
            "image",
            f"the frontend would run {engine}, gigabytes that it does not need.",
            "Set images.frontend to dynamo-frontend.",
        )
    tags = {_tag(image) for image in images.values() if image and _tag(image)}
    if len(tags) > 1:
        yield Finding(
            "release-lines", "image", f"images of several releases: {', '.join(sorted(tags))}.", "Set release once."
        )
    for command in commands:
        if command.image is not None and not re.search(r"[\w)]@sha256:[0-9a-f]{64}$|:\d+\.\d+\.\d+$", command.image):
            yield _found("image-reference", command, f"{command.image!r} names neither a release nor a digest.")


def _tag(image: str) -> str:
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def _ports(commands: Sequence[Command]) -> Iterator[Finding]:
    used: Counter[tuple[str, str]] = Counter()
    for command in commands:
        if command.kind != "engine" or not command.host:
            continue
        ports = {command.env.get(name) for name in ("DYN_SYSTEM_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_PORT")}
        endpoint = _json(option(command, "--kv-events-config")).get("endpoint")
        used.update((command.host, port) for port in [*ports, endpoint] if port)
    for (host, port), count in sorted(used.items()):
        if count > 1:
            yield Finding("port-clash", host, f"{count} processes use {port}.", "Render the recipe again.")


def _start(command: Command) -> Iterator[Finding]:
    text = " ".join(command.argv)
    if command.kind != "other" and re.search(r"\bpip3? install\b|\buv pip\b", text):
        yield _found("install-at-start", command, "it installs packages when it starts.")
    if off := sorted(_OFF & set(command.env)):
        yield _found("disabled-check", command, f"{off[0]} switches off a check of versions.")


def _transfer(command: Command) -> dict[str, Any]:
    return _json(option(command, "--kv-transfer-config"))


def _json(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _found(code: str, command: Command, message: str) -> Finding:
    return Finding(code, command.where, message, "Render the recipe again, and change the recipe rather than the file.")
