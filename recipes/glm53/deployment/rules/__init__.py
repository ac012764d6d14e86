"""Combinations that cannot work, each as a finding before anything is rendered or started."""

from collections.abc import Callable, Iterator

from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment
from glm53.deployment.rules import cache, capture, groups, overrides, serving, supply

__all__ = ["RULES"]

RULES: tuple[Callable[[Deployment], Iterator[Finding]], ...] = (
    groups.findings,
    cache.findings,
    serving.findings,
    supply.findings,
    capture.findings,
    overrides.findings,
)
