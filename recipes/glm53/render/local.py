"""A deployment as processes on this machine: command lines and environments, nothing started.

Pure and sorted: equal input gives equal output. All addresses are loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm53.deployment import Deployment

__all__ = ["LOOPBACK", "Ports", "Process", "Role", "port_count", "render"]

LOOPBACK = "127.0.0.1"
NAMESPACE = "dynamo"
Role = str  # "broker", "frontend", "prefill", "decode" or "aggregated"


@dataclass(frozen=True)
class Process:
    """One process to start.

    ready_url: answers 200 once the process can serve; None if it is ready when its ports are.
    transfer_log: the file in which a worker writes one line per KV transfer; None for the others.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: dict[str, str]
    ready_url: str | None
    transfer_log: Path | None = None


@dataclass(frozen=True)
class Ports:
    """The HTTP port of the frontend, and free ports for everything internal."""

    http: int
    internal: tuple[int, ...]


def port_count(deployment: Deployment) -> int:
    """Internal ports `render` needs: two for the event broker, two per worker."""
    return 2 + 2 * len(list(_roles(deployment)))


def render(deployment: Deployment, ports: Ports, run_dir: Path, python: str) -> list[Process]:
    """The processes of `deployment` in starting order.

    run_dir: absolute folder for discovery files, sockets and logs of this run. python: interpreter that has
    vLLM and Dynamo. Raises ValueError if there are too few ports.
    """
    if len(ports.internal) < port_count(deployment):
        raise ValueError(f"{deployment.name} needs {port_count(deployment)} ports, got {len(ports.internal)}")
    internal = iter(ports.internal)
    publish, subscribe = next(internal), next(internal)
    common = _environment(deployment, run_dir, publish, subscribe)
    processes = [
        Process(
            name="broker",
            role="broker",
            argv=(python, "-m", "glm53.local.broker", _tcp(publish), _tcp(subscribe)),
            env=common,
            ready_url=None,
        ),
        Process(
            name="frontend",
            role="frontend",
            argv=(
                *(python, "-m", "dynamo.frontend"),
                *("--http-host", LOOPBACK, "--http-port", str(ports.http)),
                *("--router-mode", deployment.router),
                *_PLANES,
            ),
            env=common,
            ready_url=f"http://{LOOPBACK}:{ports.http}/health",
        ),
    ]
    for role, index in _roles(deployment):
        processes.append(_worker(deployment, role, index, next(internal), next(internal), run_dir, python, common))
    return processes


_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp")


def _roles(deployment: Deployment) -> Iterator[tuple[Role, int]]:
    for role in ("prefill", "decode", "aggregated"):
        for index in range(getattr(deployment.workers, role)):
            yield role, index


def _tcp(port: int) -> str:
    return f"tcp://{LOOPBACK}:{port}"


def _environment(deployment: Deployment, run_dir: Path, publish: int, subscribe: int) -> dict[str, str]:
    """What every process gets on top of the caller's environment."""
    return {
        # Dynamo: files instead of etcd and NATS, loopback instead of the host's address. Without a broker its
        # event plane listens on all interfaces.
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(run_dir / "discovery"),
        # A worker that is not ready answers health checks with 503, and would log each as an error.
        "DYN_LOG": "info,tower_http=off",
        "DYN_NAMESPACE": NAMESPACE,
        "DYN_PARSER_VERSION": str(deployment.tools.parser_version),
        "DYN_SELF_HOST_METADATA": "0",
        "DYN_SYSTEM_HOST": LOOPBACK,
        "DYN_TCP_RESPONSE_STREAM_HOST": LOOPBACK,
        "DYN_TCP_RPC_HOST": LOOPBACK,
        "DYN_ZMQ_BROKER_URL": f"xsub={_tcp(publish)} , xpub={_tcp(subscribe)}",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "NO_COLOR": "1",
        # No hub look-ups, no usage reports, equal hashes in all processes.
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # vLLM and transformers are tens of thousands of lines: compile them once, not in every process.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _worker(
    deployment: Deployment,
    role: Role,
    index: int,
    status_port: int,
    handshake_port: int,
    run_dir: Path,
    python: str,
    common: dict[str, str],
) -> Process:
    name = f"{role}-{index}"
    engine = deployment.engine
    arguments = [
        *("--model", str(deployment.model.path), "--served-model-name", deployment.model.served_name),
        *("--dtype", engine.dtype, "--block-size", str(engine.block_size)),
        *("--max-model-len", str(engine.max_model_len)),
        *("--max-num-batched-tokens", str(engine.max_batched_tokens)),
        *("--max-num-seqs", str(engine.max_sequences)),
        *("--kv-cache-memory-bytes", str(int(engine.kv_cache)), "--kv-cache-dtype", engine.kv_cache_dtype),
        "--enforce-eager",
        *("--dyn-tool-call-parser", deployment.tools.call_parser),
        *("--dyn-reasoning-parser", deployment.tools.reasoning_parser),
        *_PLANES,
    ]
    transfer_log = None
    if role != "aggregated":
        transfer_log = run_dir / f"transfers-{name}.jsonl"
        arguments += ["--disaggregation-mode", role]
        arguments += ["--kv-transfer-config", _json(_kv_transfer(deployment, role, transfer_log))]
    if role != "decode":
        # vLLM binds the socket only of an ipc or wildcard address; with a plain tcp address nothing listens
        # and the router never learns what is cached.
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{run_dir / f'{name}.events'}",
        }
        arguments += ["--kv-events-config", _json(events)]
    env = common | {
        "DYN_SYSTEM_PORT": str(status_port),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(handshake_port),
        # UCX announces every address it listens on; keep it on loopback.
        "UCX_NET_DEVICES": "lo",
        "UCX_TLS": "tcp",
        # The CPU platform of the plugin vllm_cpu_dsa, one thread a worker.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_DSA": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if engine.nvfp4_policy:
        env["FLASHINFER_NVFP4_POLICY"] = engine.nvfp4_policy
    return Process(
        name=name,
        role=role,
        argv=(python, "-m", "dynamo.vllm", *arguments),
        env=env,
        ready_url=f"http://{LOOPBACK}:{status_port}/health",
        transfer_log=transfer_log,
    )


def _kv_transfer(deployment: Deployment, role: Role, transfer_log: Path) -> dict[str, Any]:
    transfer = deployment.kv_transfer
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "vllm_blhnc.connector",
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {
            "kv_lease_duration": transfer.lease_seconds,
            "blhnc": {
                "layout": transfer.layout,
                "block_allocation": transfer.block_allocation,
                "eviction_window": transfer.eviction_window,
                "progress_delay_us": transfer.nixl_progress_delay_us,
                "transfer_log": str(transfer_log),
            },
        },
    }


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
