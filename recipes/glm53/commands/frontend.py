"""The frontend's command line: HTTP in, and the router that chooses workers."""

from __future__ import annotations

from glm53.deployment import Deployment

__all__ = ["frontend_arguments", "frontend_module"]

_MODULES = {"stock": "dynamo.frontend", "structural_tags": "dynamo_structural_tags.frontend"}


def frontend_module(deployment: Deployment) -> str:
    """What ``python3 -m`` runs: Dynamo's frontend, or the same one with a plugin's chat engine."""
    return _MODULES[deployment.tools.frontend]


def frontend_arguments(deployment: Deployment, host: str, port: int) -> list[str]:
    """Arguments of ``python3 -m dynamo.frontend``."""
    frontend = deployment.frontend
    arguments = ["--http-host", host, "--http-port", str(port), "--router-mode", deployment.router]
    if deployment.router == "kv":
        arguments += ["--router-kv-events"]
        if frontend.replicas > 1:  # each router tells the others what it sent where
            arguments += ["--router-replica-sync"]
    if frontend.session_seconds:
        arguments += ["--router-session-affinity-ttl-secs", str(frontend.session_seconds)]
    if frontend.busy_blocks:
        arguments += ["--active-decode-blocks-threshold", str(frontend.busy_blocks)]
    if frontend.retries:
        arguments += ["--migration-limit", str(frontend.retries)]
    return arguments
