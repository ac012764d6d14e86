"""The script that copies a folder into the volume that all nodes share: whole or not at all, and once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from glm53.deployment import Deployment, Target
from glm53.output.manifest import documents
from glm53.render.kubernetes.pods import MOUNT, labels, pod, volume_mounts, volumes

__all__ = ["upload_script"]

#: One line a file, size and path; equal lists are taken for equal folders.
_LIST = "cd \"$1\" && find . -type f ! -name .complete -printf '%s %p\\n' | LC_ALL=C sort | sha256sum"


def upload_script(deployment: Deployment, target: Target, folder: Path, place: str) -> str:
    """``upload.sh NAMESPACE`` on Kubernetes, ``upload.sh`` elsewhere. folder: here. place: in the volume."""
    on_kubernetes = target == "kubernetes"
    root = MOUNT if on_kubernetes else str(deployment.cluster.shared)
    lines = [
        "#!/usr/bin/env bash",
        f"# Copies a folder into the volume of {deployment.name}" + (": upload.sh NAMESPACE" if on_kubernetes else ""),
        "set -euo pipefail",
        f"from={shlex.quote(str(folder))}",
        f"to={shlex.quote(f'{root}/{place}')}",
        "fail() {",
        '    echo "upload.sh: $1" >&2',
        "    exit 1",
        "}",
        "listed() { " + _LIST + "; }",
    ]
    lines += _in_pod(deployment) if on_kubernetes else ['inside() { "$@"; }']
    lines += [
        'own=$(listed "$from")',
        'if inside test -e "$to/.complete"; then',
        '    there=$(inside cat "$to/.complete")',
        '    [ "$there" = "$own" ] || fail "$to holds another folder; give this one another name."',
        '    echo "$to is there already"',
        "    exit 0",
        "fi",
        'if inside test -e "$to"; then fail "$to is there, and was not copied by this script; move it away."; fi',
        'inside rm -rf "$to.part"',
        'inside mkdir -p "$to.part"',
        'tar --directory "$from" --create --file - . | inside tar --directory "$to.part" --extract --file -',
        f'arrived=$(inside bash -c {shlex.quote(_LIST)} list "$to.part")',
        '[ "$arrived" = "$own" ] || fail "what arrived in $to.part is not what was sent; run it again."',
        'inside bash -c \'echo "$3" > "$1/.complete" && mv "$1" "$2"\' keep "$to.part" "$to" "$own"',
        'echo "copied to $to"',
    ]
    return "\n".join(lines) + "\n"


def _in_pod(deployment: Deployment) -> list[str]:
    """A pod that has the volume, for as long as the script runs."""
    name = f"{deployment.name}-upload"
    container = {
        "name": "upload",
        "image": deployment.image("engine"),
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        "volumeMounts": volume_mounts(writable=True),
    }
    spec = pod(
        deployment,
        [container],
        nodeSelector={"kubernetes.io/arch": deployment.machine.architecture},
        restartPolicy="Never",
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=volumes(deployment, writable=True),
    )
    obj: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels(deployment, "upload")},
        "spec": spec,
    }
    return [
        'namespace="${1:?usage: upload.sh NAMESPACE}"',
        f"pod={name}",
        'kube() { kubectl --namespace "$namespace" "$@"; }',
        'inside() { kube exec --stdin "$pod" -- "$@"; }',
        "trap 'kube delete pod \"$pod\" --ignore-not-found --wait=false > /dev/null' EXIT",
        "kube apply --filename - << 'POD'",
        documents([obj]).rstrip("\n"),
        "POD",
        'kube wait --for=condition=Ready --timeout=1h "pod/$pod"',
    ]
