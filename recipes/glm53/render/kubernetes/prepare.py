"""The job that fills the shared volume before anything serves from it."""

from __future__ import annotations

import hashlib
from typing import Any

from glm53.commands.volume import prepare_script
from glm53.deployment import Deployment
from glm53.render.kubernetes.pods import MOUNT, labels, writing_pod

__all__ = ["job_name", "prepare"]


def job_name(deployment: Deployment) -> str:
    """A name that changes with what the job does, because a job cannot be changed."""
    script = prepare_script(deployment, MOUNT) + deployment.image("engine")
    return f"{deployment.name}-prepare-{hashlib.sha256(script.encode()).hexdigest()[:8]}"


def prepare(deployment: Deployment) -> list[dict[str, Any]]:
    """The job. The hub's token is read from a Secret and reaches this pod only."""
    own = labels(deployment, "prepare")
    container = {
        "name": "prepare",
        "image": deployment.image("engine"),
        "command": ["bash", "-c", prepare_script(deployment, MOUNT)],
        "env": [
            {"name": "HF_HOME", "value": "/tmp/hub"},
            {
                "name": "HF_TOKEN",
                "valueFrom": {
                    "secretKeyRef": {"name": deployment.cluster.hub_secret, "key": "HF_TOKEN", "optional": False}
                },
            },
        ],
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "64Gi"}},
    }
    if deployment.model.repository is None:
        del container["env"]
    spec = writing_pod(deployment, container, "OnFailure")
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job_name(deployment), "labels": own},
            "spec": {"backoffLimit": 3, "template": {"metadata": {"labels": own}, "spec": spec}},
        }
    ]
