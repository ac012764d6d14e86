"""The variables that make a worker record what it serves."""

from __future__ import annotations

from glm53.deployment import Deployment, RoleName

__all__ = ["capture_environment", "captures"]


def captures(deployment: Deployment, role: RoleName) -> bool:
    """Whether workers of this role record: those that make a client's tokens, and prefill makes none."""
    return deployment.capture is not None and role != "prefill"


def capture_environment(deployment: Deployment, role: RoleName, folder: str) -> dict[str, str]:
    """``RL_CAPTURE...`` of a worker; none where it does not record. folder: absolute, shared by all workers."""
    capture, model = deployment.capture, deployment.model
    if capture is None or not captures(deployment, role):
        return {}
    return {
        "RL_CAPTURE": "on",
        "RL_CAPTURE_DIR": folder,
        "RL_CAPTURE_FILE_BYTES": str(int(capture.file)),
        "RL_CAPTURE_FULL": capture.full,
        "RL_CAPTURE_PROMPT_TOKENS": str(capture.prompt_tokens),
        "RL_CAPTURE_REDACT": capture.patterns or capture.redact,
        "RL_CAPTURE_SAMPLE": f"{capture.sample:g}",
        "RL_CAPTURE_TEXT": "on" if capture.text else "off",
        "RL_CAPTURE_TOTAL_BYTES": str(int(capture.total)),
        # Where the weights came from, which their path in a cluster's volume does not tell.
        "RL_CAPTURE_WEIGHTS": "@".join(filter(None, (str(model.path or model.repository), model.revision))),
    }
