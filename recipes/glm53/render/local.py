"""A deployment as processes on this machine: command lines and environments, nothing started.

Pure and sorted: equal input gives equal output. All addresses are loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from glm53.commands.capture import capture_environment
from glm53.commands.connectors import Master
from glm53.commands.engine import Place, engine_arguments, engine_environment, serving_environment
from glm53.commands.frontend import frontend_arguments, frontend_environment, frontend_module
from glm53.commands.tier import MODULE, node_arguments
from glm53.deployment import Deployment, RoleName
from glm53.output.shell import script

__all__ = [
    "LOOPBACK",
    "Ports",
    "Process",
    "Role",
    "files",
    "port_runs",
    "render",
    "shared_ports",
    "worker",
    "worker_ports",
]

LOOPBACK = "127.0.0.1"
NAMESPACE = "dynamo"
Role = str  # "broker", "frontend", "tier", "prefill", "decode" or "aggregated"

_FIRST_INTERNAL_PORT = 20_500
_BROKER_PORTS = 2
_TIER_PORTS = 3
_RANK_PORTS = 5


@dataclass(frozen=True)
class Process:
    """One process to start.

    ready_url: answers 200 once the process can serve; None if it is ready when its ports are.
    ready_file: is there once the process serves; what is started after it needs it.
    transfer_log: the file in which a worker writes one line per KV transfer; None for the others.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: dict[str, str]
    ready_url: str | None
    transfer_log: Path | None = None
    ready_file: Path | None = None


@dataclass(frozen=True)
class Ports:
    """The HTTP port of the frontend, and free ports for everything internal, in the order of `port_runs`."""

    http: int
    internal: tuple[int, ...]


def port_runs(deployment: Deployment) -> tuple[int, ...]:
    """Internal ports that `render` needs, as lengths of runs of consecutive ports.

    Two for the event broker, three for the DRAM tier, and a run for each worker (`worker_ports`).
    """
    single = _BROKER_PORTS + _TIER_PORTS * (deployment.tier is not None)
    return (1,) * single + tuple(worker_ports(deployment, role) for role, _ in _groups(deployment))


def worker_ports(deployment: Deployment, role: RoleName) -> int:
    """Consecutive ports of a worker: one for its status, then one a data-parallel rank for NIXL's handshakes.

    vLLM counts the handshakes' ports up from the first rank's. With several ranks, five more in which they find
    each other.
    """
    ranks = getattr(deployment.roles, role).data_parallel
    return 1 + ranks + _RANK_PORTS * (ranks > 1)


def shared_ports(deployment: Deployment, internal: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the internal ports those that all workers use: the event broker's, and the DRAM tier's, none without one."""
    rest = internal[_BROKER_PORTS:]
    return internal[:_BROKER_PORTS], rest[:_TIER_PORTS] if deployment.tier else ()


def files(deployment: Deployment, run_dir: Path, python: str = "python3") -> dict[str, str]:
    """The processes as scripts, to read or to start by hand in the order of their numbers.

    run_dir: absolute folder for what they write. Ports are those of the deployment; `glm53 up` takes free ones.
    """
    internal = range(_FIRST_INTERNAL_PORT, _FIRST_INTERNAL_PORT + sum(port_runs(deployment)))
    processes = render(deployment, Ports(deployment.ports.http, tuple(internal)), run_dir, python)
    return {
        f"{number:02}-{process.name}.sh": script(f"{deployment.name}: {process.name}", process.argv, process.env)
        for number, process in enumerate(processes)
    }


def render(deployment: Deployment, ports: Ports, run_dir: Path, python: str) -> list[Process]:
    """The processes of `deployment` in starting order.

    run_dir: absolute folder for discovery files, sockets and logs of this run. python: interpreter that has
    vLLM and Dynamo. Raises ValueError if there are too few ports.
    """
    if len(ports.internal) < (needed := sum(port_runs(deployment))):
        raise ValueError(f"{deployment.name} needs {needed} ports, got {len(ports.internal)}")
    broker, tier = shared_ports(deployment, ports.internal)
    publish, subscribe = broker
    internal = iter(ports.internal[len(broker) + len(tier) :])
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
                *(python, "-m", frontend_module(deployment)),
                *frontend_arguments(deployment, LOOPBACK, ports.http),
                *_PLANES,
            ),
            env=common | frontend_environment(deployment),
            ready_url=f"http://{LOOPBACK}:{ports.http}/health",
        ),
    ]
    if tier:
        processes.append(_tier(deployment, tier, run_dir, python))
    for role, index in _groups(deployment):
        own = tuple(islice(internal, worker_ports(deployment, role)))
        processes.append(_worker(deployment, role, index, own, tier, run_dir, python, common))
    return processes


def worker(
    deployment: Deployment, role: RoleName, index: int, ports: Ports, run_dir: Path, python: str = "python3"
) -> Process:
    """One more worker of a deployment that runs. index: its number in the role.

    ports: the broker's two, as many as `worker_ports`, and those of the DRAM tier if there is one.
    """
    publish, subscribe, *rest = ports.internal
    own, tier = rest[: worker_ports(deployment, role)], rest[worker_ports(deployment, role) :]
    common = _environment(deployment, run_dir, publish, subscribe)
    return _worker(deployment, role, index, tuple(own), tuple(tier), run_dir, python, common)


_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp")


def _groups(deployment: Deployment) -> Iterator[tuple[RoleName, int]]:
    for role, _, groups in deployment.served():
        for index in range(groups):
            yield role, index


def _tcp(port: int) -> str:
    return f"tcp://{LOOPBACK}:{port}"


def _environment(deployment: Deployment, run_dir: Path, publish: int, subscribe: int) -> dict[str, str]:
    """What every process gets on top of the caller's environment."""
    return serving_environment(deployment) | {
        # Dynamo: files instead of etcd and NATS, loopback instead of the host's address. Without a broker its
        # event plane listens on all interfaces.
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(run_dir / "discovery"),
        # A worker that is not ready answers health checks with 503, and would log each as an error.
        "DYN_LOG": "info,tower_http=off",
        "DYN_NAMESPACE": NAMESPACE,
        "DYN_SELF_HOST_METADATA": "0",
        "DYN_SYSTEM_HOST": LOOPBACK,
        "DYN_TCP_RESPONSE_STREAM_HOST": LOOPBACK,
        "DYN_TCP_RPC_HOST": LOOPBACK,
        "DYN_ZMQ_BROKER_URL": f"xsub={_tcp(publish)} , xpub={_tcp(subscribe)}",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "NO_COLOR": "1",
        # vLLM and transformers are tens of thousands of lines: compile them once, not in every process.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def _tier(deployment: Deployment, ports: tuple[int, ...], run_dir: Path, python: str) -> Process:
    """Master and store of the DRAM tier, in one process that keeps them."""
    folder = run_dir / "tier"
    calls, metrics, store = ports
    return Process(
        name="tier",
        role="tier",
        argv=(
            *(python, "-m", MODULE),
            *node_arguments(deployment, LOOPBACK, (calls, metrics, store), str(folder)),
        ),
        env={"PYTHONUNBUFFERED": "1"},
        ready_url=f"http://{LOOPBACK}:{metrics}/health",
        ready_file=folder / "node.json",
    )


def _tier_environment(run_dir: Path) -> dict[str, str]:
    """With these, a worker's own Mooncake ports stay on loopback."""
    return {
        "LD_PRELOAD": str(run_dir / "tier" / "bind_here.so"),
        "MOONCAKE_TIER_BIND": LOOPBACK,
    }


def _worker(
    deployment: Deployment,
    role: RoleName,
    index: int,
    own: tuple[int, ...],
    tier: tuple[int, ...],
    run_dir: Path,
    python: str,
    common: dict[str, str],
) -> Process:
    """own: as many ports as `worker_ports`. tier: those of the DRAM tier, none without one."""
    status_port, handshake_port, *_ = own
    name = f"{role}-{index}"
    transfer_log = None if role == "aggregated" else run_dir / f"transfers-{name}.jsonl"
    # vLLM binds the socket only of an ipc or wildcard address; with a plain tcp address nothing listens and the
    # router never learns what is cached. It counts up for data-parallel ranks what follows the last colon of an
    # address in which it finds "tcp", and refuses others; a socket's name may be such an address.
    place = Place(
        model=str(deployment.model.folder),
        events=f"ipc://{run_dir / f'{name}.events.tcp:1'}",
        transfer_log=None if transfer_log is None else str(transfer_log),
        master=Master(f"{LOOPBACK}:{tier[0]}", f"{LOOPBACK}:{tier[1]}", LOOPBACK) if tier else None,
    )
    env = {
        **common,
        **(_tier_environment(run_dir) if tier and role != "decode" else {}),
        **engine_environment(deployment, role),
        **capture_environment(deployment, role, str(run_dir / "capture")),
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
        # The ranks of a group talk over loopback, too.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if getattr(deployment.roles, role).data_parallel > 1:
        # vLLM chooses the ports of its data-parallel groups when it starts and listens there when the ranks have
        # loaded. Left alone it takes ephemeral ones, which any connection of the machine may have by then.
        env["VLLM_PORT"] = str(own[-_RANK_PORTS])
    return Process(
        name=name,
        role=role,
        argv=(python, "-m", "dynamo.vllm", *engine_arguments(deployment, role, place), *_PLANES),
        env=env,
        ready_url=f"http://{LOOPBACK}:{status_port}/health",
        transfer_log=transfer_log,
    )
