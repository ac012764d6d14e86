"""The frontend's command line: HTTP in, and the router that chooses workers."""

from __future__ import annotations

from glm53.commands.engine import serving_environment
from glm53.deployment import Deployment

__all__ = ["frontend_arguments", "frontend_environment", "frontend_module"]

#: Milliseconds for which a stream's headers wait for its first token: longer than any prompt takes.
_HOLD_MS = 3_600_000

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
    if frontend.busy_prefill_tokens:
        arguments += ["--active-prefill-tokens-threshold", str(frontend.busy_prefill_tokens)]
    if frontend.retries:
        arguments += ["--migration-limit", str(frontend.retries)]
    return arguments


def frontend_environment(deployment: Deployment) -> dict[str, str]:
    """Variables of a frontend that do not depend on the target.

    Dynamo 1.6.1 answers a full deployment with 529, and a streaming request with its headers before any worker has it.
    """
    env = serving_environment(deployment) | {"DYN_HTTP_OVERLOAD_STATUS_CODE": str(deployment.frontend.full_status)}
    if deployment.frontend.hold_headers:
        env["DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS"] = str(_HOLD_MS)
    return env
