"""One host's report: facts, plugins and findings, for people, for programs, and to compare with another host's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glm53 import __version__
from glm53.doctor import fit, lines, packages, plugins, variables
from glm53.doctor import host as hosts
from glm53.doctor.finding import Diagnosis
from glm53.doctor.host import Host
from glm53.doctor.inventory import Inventory
from glm53.doctor.needs import Needs
from glm53.doctor.plugins import Status

__all__ = ["KIND", "SCHEMA", "TOLD", "Report", "diagnose"]

KIND = "glm53-doctor"
SCHEMA = 1
#: Packages whose versions a report shows, beside `packages.STACK`: what they compute with.
TOLD = (*packages.STACK, "transformers", "triton", "nvidia-cutlass-dsl", "tilelang")


@dataclass(frozen=True)
class Report:
    """What the doctor knows of a host. versions: package -> version. variables: as `glm53.doctor.variables` tells."""

    line: str | None
    purpose: str
    host: Host
    versions: Mapping[str, str]
    entries: tuple[str, ...]
    variables: Mapping[str, str]
    plugins: tuple[Status, ...]
    needs: Needs | None
    findings: tuple[Diagnosis, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it: what ``--pair`` reads."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "glm53": __version__,
            "line": self.line,
            "purpose": self.purpose,
            "host": self.host.as_dict(),
            "versions": dict(self.versions),
            "entry_points": list(self.entries),
            "variables": dict(self.variables),
            "plugins": [status.as_dict() for status in self.plugins],
            "recipe": self.needs.as_dict() if self.needs else None,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def text(self) -> Iterator[str]:
        """The lines for a person."""
        host = self.host
        yield f"line: vLLM {self.line}, {self.purpose}" if self.line else f"line: none, {self.purpose}"
        yield "packages: " + (", ".join(f"{name} {version}" for name, version in self.versions.items()) or "none")
        for status in self.plugins:
            yield f"{status.name}: {status.state}, {status.does}"
            if status.reasons:
                yield f"  {'; '.join(status.reasons)}"
            applied = [name for name, what in status.patches.items() if what == "applies"]
            if status.patches and status.state != "cannot":
                yield f"  patches that fit this release: {len(applied)} of {len(status.patches)}"
        gpus = [f"{len([one for one in host.gpus if one.name == name])} x {name}" for name in _names(host)]
        active = sum(port.active for port in host.ports)
        yield (
            f"host: {host.name}, {host.machine}, Python {host.python}, {host.cpus} CPUs, {host.memory / 1e9:.0f} GB, "
            f"/dev/shm {host.shm / 1e9:.1f} GB, {', '.join(gpus) or 'no GPU'}, "
            f"{active} of {len(host.ports)} RDMA ports active"
        )


def diagnose(inventory: Inventory, environment: Mapping[str, str], host: Host, needs: Needs | None = None) -> Report:
    """Everything that can be said of a host. environment: of this process; a recipe's variables are laid over it."""
    wanted = needs.plugins if needs else frozenset()
    applied = {**environment, **needs.environment} if needs else dict(environment)
    findings = [
        *lines.examine(inventory),
        *packages.examine(inventory, applied),
        *variables.examine(inventory, applied, "vllm_blhnc" in wanted),
        *plugins.examine(inventory, applied, wanted),
        *hosts.examine(host),
        *(fit.examine(needs, inventory, environment, host) if needs else ()),
    ]
    line = lines.line_of(inventory)
    vllm = inventory.first(*packages.VLLM)
    purpose = line.purpose if line else "no vLLM is installed" if vllm is None else f"vLLM {vllm.version} is on none"
    if line and line.dynamo and "ai-dynamo" not in inventory.packages:
        purpose = f"vLLM only: its Dynamo {line.dynamo} is not installed"
    return Report(
        line=line.vllm if line else None,
        purpose=purpose,
        host=host,
        versions={name: str(inventory.packages[name].version) for name in sorted(TOLD) if name in inventory.packages},
        entries=tuple(sorted(f"{group}: {name}" for group, name in inventory.entries)),
        variables=variables.told(applied),
        plugins=tuple(plugins.statuses(inventory, applied, wanted)),
        needs=needs,
        findings=tuple(sorted(findings, key=lambda finding: finding.level != "error")),
    )


def _names(host: Host) -> list[str]:
    return list(dict.fromkeys(gpu.name for gpu in host.gpus))
