"""A deployment as typed objects: one YAML file in, every value that prefill and decode must share once.

Unknown keys and impossible combinations are findings; nothing is started or rendered from a deployment that has any.
"""

from glm53.deployment.findings import DeploymentError, Finding
from glm53.deployment.model import Deployment, Target
from glm53.deployment.parts import CPU_CACHE_DTYPES, Engine
from glm53.deployment.reading import load, parse, read_yaml
from glm53.deployment.roles import Role, RoleName

__all__ = [
    "CPU_CACHE_DTYPES",
    "Deployment",
    "DeploymentError",
    "Engine",
    "Finding",
    "Role",
    "RoleName",
    "Target",
    "load",
    "parse",
    "read_yaml",
]
