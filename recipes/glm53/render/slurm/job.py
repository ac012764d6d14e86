"""The batch script, and the script that submits it once everything it needs is there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from glm53.deployment import Deployment
from glm53.render.slurm.placement import Slot, node_count

__all__ = ["job_script", "submit_script"]


def _container(deployment: Deployment, image: str) -> str:
    """An image as enroot names it: ``registry#path``."""
    registry, _, path = image.partition("/")
    name, _, digest = path.partition("@")
    return f"{registry}#{name.rpartition(':')[0]}@{digest}" if digest else f"{registry}#{path}"


def job_script(deployment: Deployment, slots: Sequence[Slot]) -> str:
    """``job.sbatch``: one step a process; the job ends as soon as one of them does."""
    cluster, nodes = deployment.cluster, node_count(list(slots))
    lines = ["#!/usr/bin/env bash", f"#SBATCH --job-name={deployment.name}", f"#SBATCH --nodes={nodes}"]
    lines += [f"#SBATCH --gpus-per-node={deployment.machine.gpus}", "#SBATCH --exclusive"]
    lines += [f"#SBATCH --time={cluster.hours}:00:00", f"#SBATCH --output={cluster.shared}/logs/%x-%j.log"]
    lines += [f"#SBATCH --partition={cluster.partition}"] if cluster.partition else []
    lines += [f"#SBATCH --account={cluster.account}"] if cluster.account else []
    if deployment.machine.nvlink_nodes > 1:
        lines.append(f"#SBATCH --segment={nodes}  # all nodes in one NVLink domain")
    lines += [
        "set -euo pipefail",
        'here="${GLM53_SCRIPTS:?is set by submit.sh}"',
        f"shared={shlex.quote(str(cluster.shared))}",
        f'export RUN_DIR="$shared/run/{deployment.name}-$SLURM_JOB_ID"',
        'mkdir -p "$RUN_DIR/discovery"',
        'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "",
        "# The address at which the other nodes reach a node.",
        "address() {",
        "    local found",
        "    found=$(getent ahostsv4 \"$1\" | awk '!/^127\\./ { print $1; exit }')",
        '    [ -n "$found" ] || { echo "$1 has no address but loopback, which no other node reaches" >&2; exit 1; }',
        '    echo "$found"',
        "}",
        "addresses=()",
        'for node in "${nodes[@]}"; do addresses+=("$(address "$node")"); done',
        'export FRONT_ADDRESS="${addresses[0]}"',
        "",
        "# start SCRIPT NODE FIRST_NODE_OF_GROUP IMAGE",
        "start() {",
        '    NODE_ADDRESS="${addresses[$2]}" GROUP_ADDRESS="${addresses[$3]}" srun --overlap --nodes=1 --ntasks=1 \\',
        '        --cpu-bind=none --mem=0 --nodelist="${nodes[$2]}" \\',
        '        --container-image="$4" --container-mounts="$shared:$shared,$here:$here" \\',
        '        --no-container-mount-home --output="$RUN_DIR/$1-$2.log" bash "$here/$1.sh" &',
        "}",
        "",
        f"engine={shlex.quote(_container(deployment, deployment.image('engine')))}",
        f"frontend={shlex.quote(_container(deployment, deployment.image('frontend')))}",
    ]
    if deployment.tier:
        stored = sorted({slot.node for slot in slots if slot.role != "decode"})
        lines += [
            f"store={shlex.quote(_container(deployment, deployment.image('store')))}",
            'start tier-master 0 0 "$store"',
            "# The master listens before anybody asks for it.",
            "for _ in {1..300}; do",
            f'    if (exec 3<> "/dev/tcp/$FRONT_ADDRESS/{deployment.ports.tier_rpc}") 2> /dev/null; then break; fi',
            "    sleep 1",
            "done",
            *(f'start tier-store {node} {node} "$store"' for node in stored),
        ]
    lines.append('start frontend 0 0 "$frontend"')
    lines += [f'start {slot.name} {slot.node} {slot.node - slot.rank} "$engine"' for slot in slots]
    lines += [
        "",
        f'echo "OpenAI API: http://$FRONT_ADDRESS:{deployment.ports.http}/v1, logs in $RUN_DIR"',
        "# Whatever ends, ends all: a group that lost a process would answer wrongly or not at all.",
        "status=0",
        "wait -n || status=$?",
        'echo "a process ended with status $status; ending the others" >&2',
        'scancel "$SLURM_JOB_ID"',
        "exit 1",
    ]
    return "\n".join(lines) + "\n"


def submit_script(deployment: Deployment) -> str:
    """``submit.sh``: refuses what is not pinned, fills the shared folder, and submits the job."""
    shared = shlex.quote(str(deployment.cluster.shared))
    image = shlex.quote(_container(deployment, deployment.image("engine")))
    lines = [
        "#!/usr/bin/env bash",
        f"# Submits {deployment.name}; the scripts must lie in a folder that all nodes see.",
        "set -euo pipefail",
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    ]
    if unpinned := deployment.unpinned():
        lines += [
            f"unpinned={shlex.quote(' '.join(unpinned))}",
            'if [ "${ALLOW_UNPINNED:-0}" != 1 ]; then',
            '    echo "submit.sh: $unpinned may change under a running deployment. Run pins.sh > pins.yaml, render'
            ' again with --pins pins.yaml, or set ALLOW_UNPINNED=1." >&2',
            "    exit 1",
            "fi",
        ]
    partition = [f"--partition={deployment.cluster.partition}"] if deployment.cluster.partition else []
    account = [f"--account={deployment.cluster.account}"] if deployment.cluster.account else []
    options = shlex.join(["--nodes=1", "--ntasks=1", *partition, *account])
    lines += [
        f"shared={shared}",
        'mkdir -p "$shared/logs" "$shared/run"',
        f'srun {options} --container-image={image} --container-mounts="$shared:$shared,$here:$here" \\',
        '    bash "$here/prepare.sh"',
        'sbatch --export="ALL,GLM53_SCRIPTS=$here" "$here/job.sbatch"',
    ]
    return "\n".join(lines) + "\n"
