"""The lines of the support matrix, and the one that an environment is on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from glm53.doctor.finding import Diagnosis
from glm53.doctor.inventory import VLLM, Inventory
from glm53.doctor.repair import install, uninstall
from stockpatch.versions import Window

__all__ = ["LINES", "SUPPORTED", "Line", "examine", "line_of"]

#: Releases of vLLM that the plugins work on.
SUPPORTED = Window(VLLM, ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))


@dataclass(frozen=True)
class Line:
    """vLLM, and what is tested with it. dynamo: None where Dynamo has no release for it."""

    vllm: str
    nixl: str
    dynamo: str | None
    purpose: str


LINES = (
    Line("0.31.0", "1.4.1", "1.6.1", "whole stack: vLLM behind Dynamo"),
    Line("0.32.0", "1.5.1", None, "vLLM only"),
    Line("0.33.0", "1.5.1", None, "vLLM only"),
)


def line_of(inventory: Inventory) -> Line | None:
    """The line whose minor release of vLLM is installed; None without vLLM, or with another one."""
    vllm = inventory.first(*VLLM)
    if vllm is None:
        return None
    return next((line for line in LINES if Version(line.vllm).release[:2] == vllm.version.release[:2]), None)


def examine(inventory: Inventory) -> Iterator[Diagnosis]:
    """Findings about which vLLM is installed."""
    found = [inventory.packages[name] for name in VLLM if name in inventory.packages]
    lines = ", ".join(f"{line.vllm} ({line.purpose})" for line in LINES)
    if not found:
        yield Diagnosis(
            "line-none",
            "vllm",
            "no vLLM is installed here: a laptop can lint, plan and render, and a frontend's image has none.",
            f"On a worker install one of the lines {lines}.",
            level="note",
        )
        return
    if len(found) > 1:
        seen = " and ".join(f"{one.name}=={one.version}" for one in found)
        yield Diagnosis(
            "two-vllm",
            "vllm",
            f"{seen} are installed; both install the package `vllm`, so it is a mixture of the two.",
            "Uninstall both, then install one.",
            (uninstall(*(one.name for one in found)), install(f"{found[0].name}=={found[0].version}")),
        )
    vllm, line = found[0], line_of(inventory)
    if line is None:
        yield Diagnosis(
            "line-unknown",
            vllm.name,
            f"{vllm.version} is installed, and the plugins know the lines {lines}.",
            "Install one of them; plugins that are switched on refuse this one.",
            (install(f"{vllm.name}=={LINES[0].vllm}"),),
        )
    elif vllm.version.public != line.vllm:
        yield Diagnosis(
            "line-untested",
            vllm.name,
            f"{vllm.version} is on the line {line.vllm}, and the tests run on {line.vllm} itself.",
            f"Prefer {line.vllm}.",
            (install(f"{vllm.name}=={line.vllm}"),),
            level="note",
        )
