"""Records of requests: where they are kept, and limits that leave room for them."""

from __future__ import annotations

from collections.abc import Iterator

from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment

__all__ = ["findings"]


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with `capture`."""
    capture = deployment.capture
    if capture is None:
        return
    if capture.total < 2 * capture.file:
        yield Finding(
            "capture-size",
            "capture.total",
            f"{int(capture.total)} bytes are less than two files of {int(capture.file)}: the folder would be full "
            "before a file is closed.",
            "Give at least twice capture.file.",
        )
    if capture.patterns and capture.redact == "none":
        yield Finding(
            "capture-redaction",
            "capture.patterns",
            "with redact: none nothing is masked, so the expressions would do nothing.",
            "Set redact: secrets, which the expressions add to, or leave patterns out.",
        )
    yield from _volume(deployment)
    for name, role, _ in deployment.served():
        listed = role.environment.get("VLLM_PLUGINS")
        if name != "prefill" and listed is not None and "rl_capture" not in listed.split(","):
            yield Finding(
                "plugins-left-out",
                f"roles.{name}.environment.VLLM_PLUGINS",
                f"{listed!r}: vLLM would not load rl_capture, and record nothing, without a word.",
                "Name rl_capture in it, or remove it.",
            )


def _volume(deployment: Deployment) -> Iterator[Finding]:
    capture = deployment.capture
    assert capture is not None
    on_kubernetes = "kubernetes" in deployment.targets
    if on_kubernetes and capture.volume is None:
        yield Finding(
            "capture-volume",
            "capture.volume",
            "records would lie in the pods and go with them.",
            "Name the claim of a volume that several nodes can write.",
        )
    if capture.volume is not None and not on_kubernetes:
        yield Finding(
            "capture-volume",
            "capture.volume",
            "only Kubernetes has claims; elsewhere records are in the run's or the shared folder.",
            "Leave it out.",
        )
    if capture.volume is not None and capture.volume == deployment.cluster.volume:
        yield Finding(
            "capture-volume",
            "capture.volume",
            f"{capture.volume} holds the models, and workers have it read-only.",
            "Use a claim of its own.",
        )
