"""A deployment as one Slurm job: a script a process, and the job that starts them on its nodes.

Pure and sorted. Containers are started by pyxis (``srun --container-image``); the shared folder of the cluster holds
models, plugins and what a run writes.
"""

from __future__ import annotations

from glm53.commands.capture import capture_environment
from glm53.commands.connectors import Master
from glm53.commands.copying import copy_script
from glm53.commands.engine import Place, engine_arguments, engine_environment, serving_environment
from glm53.commands.frontend import frontend_arguments, frontend_environment
from glm53.commands.pins import pins_script
from glm53.commands.tier import MODULE, master_arguments, store_arguments
from glm53.commands.volume import model_folder, plugins_folder, prepare_script
from glm53.deployment import Deployment
from glm53.output.shell import script
from glm53.render.slurm.job import job_script, submit_script
from glm53.render.slurm.placement import Slot, place

__all__ = ["render"]

_TIER_DIR = "${RUN_DIR}/tier"
_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


def render(deployment: Deployment) -> dict[str, str]:
    """Path -> text of every file."""
    slots = place(deployment)
    shared = str(deployment.cluster.shared)
    files = {
        "job.sbatch": job_script(deployment, slots),
        "submit.sh": submit_script(deployment),
        "pins.sh": pins_script(deployment),
        "upload.sh": copy_script(deployment.name, [], shared, ['inside() { "$@"; }']),
        "prepare.sh": "#!/usr/bin/env bash\n# Fills the shared folder, inside the engine's image\n"
        + prepare_script(deployment, shared),
        "frontend.sh": _frontend(deployment),
    }
    files |= {f"{slot.name}.sh": _worker(deployment, slot) for slot in slots}
    if deployment.tier:
        files |= {
            "tier-master.sh": script(
                f"{deployment.name}: Mooncake's master",
                ["python3", "-m", MODULE, *master_arguments(deployment, "${NODE_ADDRESS}", f"{_TIER_DIR}-master")],
                _paths(deployment),
            ),
            "tier-store.sh": script(
                f"{deployment.name}: Mooncake's store of one node",
                [
                    *("python3", "-m", MODULE),
                    *store_arguments(
                        deployment, "${NODE_ADDRESS}", "${FRONT_ADDRESS}", f"{_TIER_DIR}-${{NODE_ADDRESS}}"
                    ),
                ],
                _paths(deployment),
            ),
        }
    return files


def _frontend(deployment: Deployment) -> str:
    arguments = frontend_arguments(deployment, "0.0.0.0", deployment.ports.http)
    argv = ["python3", "-m", "dynamo.frontend", *arguments, *_PLANES]
    env = _runtime(deployment) | frontend_environment(deployment)
    return script(f"{deployment.name}: frontend and router", argv, env)


def _worker(deployment: Deployment, slot: Slot) -> str:
    ports, own = deployment.ports, getattr(deployment.roles, slot.role)
    ranks = max(role.data_parallel for _, role, _ in deployment.served())
    placement: tuple[str, ...] = ()
    if slot.nodes > 1:
        local = slot.gpus // own.tensor_parallel
        # What Dynamo's operator adds on Kubernetes: each node serves its own ranks, the router chooses among all.
        placement = (
            "--data-parallel-hybrid-lb",
            *("--data-parallel-size-local", str(local)),
            *("--data-parallel-start-rank", str(slot.rank * local)),
            *("--data-parallel-address", "${GROUP_ADDRESS}"),
            *("--data-parallel-rpc-port", str(ports.data_parallel)),
        )
    location = Place(
        model=model_folder(deployment, str(deployment.cluster.shared)),
        events=f"tcp://*:{ports.kv_events + slot.index * ranks}",
        placement=placement,
        master=Master.at(deployment, "${FRONT_ADDRESS}", "${NODE_ADDRESS}"),
    )
    env = {
        **_runtime(deployment),
        **engine_environment(deployment, slot.role),
        **capture_environment(deployment, slot.role, f"{deployment.cluster.shared}/capture/{deployment.name}"),
        **_paths(deployment),
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in range(slot.first_gpu, slot.first_gpu + slot.gpus)),
        "DYN_SYSTEM_PORT": str(ports.system + slot.index),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "${NODE_ADDRESS}",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports.side_channel + slot.index * ranks),
    }
    argv = ["python3", "-m", "dynamo.vllm", *engine_arguments(deployment, slot.role, location), *_PLANES]
    return script(f"{deployment.name}: {slot.role} group {slot.group}, node {slot.rank} of {slot.nodes}", argv, env)


def _runtime(deployment: Deployment) -> dict[str, str]:
    return serving_environment(deployment) | {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": "${RUN_DIR}/discovery",
        "DYN_NAMESPACE": deployment.name,
        "DYN_TCP_RESPONSE_STREAM_HOST": "${NODE_ADDRESS}",
        "DYN_TCP_RPC_HOST": "${NODE_ADDRESS}",
        "PYTHONUNBUFFERED": "1",
    }


def _paths(deployment: Deployment) -> dict[str, str]:
    return {"PYTHONPATH": plugins_folder(deployment, str(deployment.cluster.shared))}
