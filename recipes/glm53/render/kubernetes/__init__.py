"""A deployment as Kubernetes manifests for Dynamo's operator, and the script that applies them in order.

Pure and sorted. `DynamoGraphDeployment` is `nvidia.com/v1beta1` as Dynamo 1.6.1 serves it
(deploy/operator/api/v1beta1 of ai-dynamo/dynamo), `ComputeDomain` that of NVIDIA's DRA driver.
"""

from __future__ import annotations

from glm53.commands.pins import pins_script
from glm53.deployment import Deployment
from glm53.output.manifest import documents
from glm53.render.kubernetes.graph import graph
from glm53.render.kubernetes.launch import launch_script
from glm53.render.kubernetes.policies import (
    adapters,
    charts,
    compute_domain,
    disruption,
    fences,
    metrics,
    priority,
    scaling,
)
from glm53.render.kubernetes.prepare import prepare
from glm53.render.kubernetes.tier import tier
from glm53.render.kubernetes.upload import upload_script

__all__ = ["render"]


def render(deployment: Deployment) -> dict[str, str]:
    """Path -> text of every file."""
    manifests = {
        # The first file is applied first, and what its job runs in needs the class.
        "prepare.yaml": [*priority(deployment), *prepare(deployment)],
        "compute-domain.yaml": compute_domain(deployment),
        "tier.yaml": tier(deployment),
        "graph.yaml": [graph(deployment)],
        "network.yaml": fences(deployment),
        "disruption.yaml": disruption(deployment),
        "metrics.yaml": metrics(deployment),
        "dashboard.yaml": charts(deployment),
        "scaling.yaml": scaling(deployment),
        "adapters.yaml": adapters(deployment),
    }
    files = {name: documents(objects) for name, objects in manifests.items() if objects}
    kinds = sorted({(str(one["apiVersion"]), str(one["kind"])) for objects in manifests.values() for one in objects})
    return files | {
        "launch.sh": launch_script(deployment, list(files), kinds),
        "pins.sh": pins_script(deployment),
        "upload.sh": upload_script(deployment),
    }
