"""The script that copies a folder into the shared volume, through a pod that has it."""

from __future__ import annotations

from glm53.commands.copying import copy_script
from glm53.deployment import Deployment
from glm53.output.manifest import documents
from glm53.render.kubernetes.pods import MOUNT, labels, writing_pod

__all__ = ["upload_script"]


def upload_script(deployment: Deployment) -> str:
    """``upload.sh NAMESPACE FOLDER PLACE``. The pod is there for as long as the script runs."""
    container = {
        "name": "upload",
        "image": deployment.image("engine"),
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
    }
    spec = writing_pod(deployment, container, "Never")
    metadata = {"name": f"{deployment.name}-upload", "labels": labels(deployment, "upload")}
    inside = [
        f"pod={deployment.name}-upload",
        'kube() { kubectl --namespace "$namespace" "$@"; }',
        'inside() { kube exec --stdin "$pod" -- "$@"; }',
        "trap 'kube delete pod \"$pod\" --ignore-not-found --wait=false > /dev/null' EXIT",
        "kube apply --filename - << 'POD'",
        documents([{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]).rstrip("\n"),
        "POD",
        'kube wait --for=condition=Ready --timeout=1h "pod/$pod"',
    ]
    return copy_script(deployment.name, ["NAMESPACE"], MOUNT, inside)
