"""All checks of one target's rendered files, together."""

from __future__ import annotations

from collections.abc import Mapping

from glm53.deployment import Finding, Target
from glm53.deployment.rules.supply import PLACEHOLDER
from glm53.lint import agreement, launch, manifests
from glm53.lint.commands import from_manifests, from_scripts

__all__ = ["check"]


def check(files: Mapping[str, str], target: Target) -> list[Finding]:
    """What is wrong with the files, read back as they are; equal findings once."""
    found: list[Finding] = []
    if target == "kubernetes":
        found += manifests.problems(files)
        if any(finding.code == "not-yaml" for finding in found):
            return found
        commands = from_manifests(files)
    else:
        commands = from_scripts(files)
    found += agreement.disagreements(commands)
    found += launch.problems(commands, cluster=target != "local")
    for name, text in files.items():
        if name.endswith((".yaml", ".json")) and (word := PLACEHOLDER.search(text)):
            found.append(
                Finding("placeholder", name, f"{word[0]!r} stands for a value.", "Write the value into the recipe.")
            )
    return list(dict.fromkeys(found))
