"""The script that applies the manifests in order, and stops where the cluster lacks what they need."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from glm53.deployment import Deployment
from glm53.render.kubernetes.prepare import job_name

__all__ = ["launch_script"]

#: Kinds that no Kubernetes has by itself -> who brings them.
_BROUGHT_BY = {
    ("keda.sh/v1alpha1", "ScaledObject"): ("scaledobjects.keda.sh", "KEDA"),
    ("monitoring.coreos.com/v1", "PodMonitor"): ("podmonitors.monitoring.coreos.com", "the Prometheus operator"),
    ("nvidia.com/v1alpha1", "DynamoModel"): ("dynamomodels.nvidia.com", "Dynamo's operator"),
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): ("dynamographdeployments.nvidia.com", "Dynamo's operator"),
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): (
        "computedomains.resource.nvidia.com",
        "NVIDIA's DRA driver for GPUs",
    ),
}


def launch_script(deployment: Deployment, files: Sequence[str], kinds: Sequence[tuple[str, str]]) -> str:
    """``launch.sh NAMESPACE``. files: manifests in the order of `apply`, the preparing job first."""
    needed = [_BROUGHT_BY[kind] for kind in kinds if kind in _BROUGHT_BY]
    secrets = [deployment.cluster.pull_secret]
    if deployment.model.repository is not None:
        secrets.append(deployment.cluster.hub_secret)
    lines = [
        "#!/usr/bin/env bash",
        f"# Applies {deployment.name} to the current cluster: launch.sh NAMESPACE",
        "set -euo pipefail",
        'namespace="${1:?usage: launch.sh NAMESPACE}"',
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        "",
        "fail() {",
        '    echo "launch.sh: $1" >&2',
        "    exit 1",
        "}",
        'kube() { kubectl --namespace "$namespace" "$@"; }',
        "",
    ]
    if unpinned := deployment.unpinned():
        lines += [
            f"unpinned={shlex.quote(' '.join(unpinned))}",
            'if [ "${ALLOW_UNPINNED:-0}" != 1 ]; then',
            '    fail "$unpinned may change under a running deployment. Run pins.sh > pins.yaml, render again with'
            ' --pins pins.yaml, or set ALLOW_UNPINNED=1."',
            "fi",
            "",
        ]
    lines += [
        f'kubectl get crd {crd} > /dev/null || fail "the cluster has no {crd}; install {owner}."'
        for crd, owner in sorted(needed)
    ]
    if any(deployment.nodes(name) > 1 for name, _, _ in deployment.served()):
        crds = ("podcliquesets.grove.io", "leaderworkersets.leaderworkerset.x-k8s.io")
        found = " || ".join(f"kubectl get crd {crd} > /dev/null 2>&1" for crd in crds)
        lines.append(f'{found} || fail "groups span nodes, and the cluster has neither Grove nor LeaderWorkerSet."')
    capture = deployment.capture
    lines += [
        f'kube get pvc {volume} > /dev/null || fail "there is no volume claim {volume} in $namespace."'
        for volume in (deployment.cluster.volume, capture.volume if capture else None)
        if volume
    ]
    lines += [
        f'kube get secret {secret} > /dev/null || fail "there is no secret {secret} in $namespace."'
        for secret in secrets
        if secret
    ]
    job = job_name(deployment)
    lines += [
        "",
        # The schema of the cluster itself has the last word before anything changes.
        *(f"kube apply --dry-run=server --validate=strict --filename {name} > /dev/null" for name in files),
        "",
        f"kube apply --filename {files[0]}",
        f'kube wait --for=condition=complete --timeout=12h "job/{job}" ||'
        f' fail "job/{job} did not complete; its log says why."',
        *(f"kube apply --filename {name}" for name in files[1:]),
        f"kube wait --for=condition=Ready --timeout=3h dynamographdeployment/{deployment.name} ||"
        f' fail "dynamographdeployment/{deployment.name} is not ready; kubectl describe it."',
    ]
    return "\n".join(lines) + "\n"
