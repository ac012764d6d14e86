"""What is wrong with a deployment, as data: for people, for programs, and for the exit code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeploymentError", "Finding"]


@dataclass(frozen=True)
class Finding:
    """Something that makes a deployment unusable: where, what, and what to do."""

    code: str
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} {self.fix} [{self.code}]"


class DeploymentError(ValueError):
    """A deployment that cannot be launched, with all its findings."""

    def __init__(self, source: str, findings: list[Finding]) -> None:
        self.source = source
        self.findings = findings
        super().__init__("\n".join([f"{source} has {len(findings)} problem(s):", *(f"  {f}" for f in findings)]))
