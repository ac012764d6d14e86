"""A deployment as one typed object: every value that prefill, decode and the DRAM tier must share exists once."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from glm53.deployment.capture import Capture
from glm53.deployment.facts import HARDWARE, RELEASES, Hardware, Release
from glm53.deployment.findings import Finding
from glm53.deployment.parts import (
    Capacity,
    Cluster,
    Engine,
    Frontend,
    Images,
    KvTransfer,
    Model,
    Ports,
    Tier,
    Tools,
)
from glm53.deployment.roles import ROLES, Role, RoleName, Roles, Strict, Workers

__all__ = ["Deployment", "Target"]

Target = Literal["local", "kubernetes", "slurm"]


class Deployment(Strict):
    """One deployment: a model, its workers and how they are connected."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
    release: str = "1.6.1"
    hardware: Literal["cpu", "gb200-nvl72", "b200", "b300", "h200"] = "cpu"
    targets: Annotated[tuple[Target, ...], Field(min_length=1)] = ("local",)
    model: Model
    workers: Workers
    roles: Roles = Roles()
    engine: Engine = Engine()
    kv_transfer: KvTransfer = KvTransfer()
    tier: Tier | None = None
    tools: Tools = Tools()
    router: Literal["kv", "round-robin"] = "kv"
    frontend: Frontend = Frontend()
    capacity: Capacity = Capacity()
    capture: Capture | None = None
    ports: Ports = Ports()
    images: Images = Images()
    cluster: Cluster = Cluster()

    @property
    def machine(self) -> Hardware:
        """What is known of the hardware."""
        return HARDWARE[self.hardware]

    @property
    def versions(self) -> Release:
        """What belongs to the release. Raises KeyError for one that is a finding."""
        return RELEASES[self.release]

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run in different workers."""
        return self.workers.prefill > 0

    def served(self) -> list[tuple[RoleName, Role, int]]:
        """The roles that have groups: name, settings, groups."""
        groups: dict[RoleName, int] = {role: getattr(self.workers, role) for role in ROLES}
        return [(role, getattr(self.roles, role), count) for role, count in groups.items() if count]

    def nodes(self, role: RoleName) -> int:
        """Nodes that one group of a role needs; 1 where nodes have no GPUs."""
        gpus = getattr(self.roles, role).gpus
        return -(-gpus // self.machine.gpus) if self.machine.gpus else 1

    @property
    def tier_nodes(self) -> int:
        """Nodes that hold a part of the DRAM tier: those of the role that computes prompts."""
        role: RoleName = "prefill" if self.disaggregated else "aggregated"
        return getattr(self.workers, role) * self.nodes(role) if self.machine.gpus else 1

    def image(self, role: Literal["frontend", "engine", "store"]) -> str:
        """The image of a role, with its digest where it is known."""
        name = getattr(self.images, role)
        digest = self.images.digests.get(name)
        return f"{self.images.registry}/{name}:{self.release}" + (f"@{digest}" if digest else "")

    def unpinned(self) -> list[str]:
        """What could change under a running deployment: keys of `images.digests` and `model.revision` not given."""
        names = [self.images.frontend, self.images.engine, *([self.images.store] if self.tier else [])]
        missing = [f"images.digests.{name}" for name in sorted(set(names)) if name not in self.images.digests]
        hub = self.model.repository is not None and self.model.revision is None
        return missing + (["model.revision"] if hub else [])

    @property
    def fingerprint(self) -> str:
        """12 hex digits that differ where the bytes of a cached block, or what they mean, could differ."""
        agreed: dict[str, Any] = {
            "model": [str(self.model.path or self.model.repository), self.model.revision],
            "release": self.release,
            "layout": self.kv_transfer.layout,
            "hash": ["sha256", "0"],
            **self.engine.model_dump(
                mode="json",
                include={
                    *("dtype", "block_size", "kv_cache_dtype", "nvfp4_policy", "nvfp4_fold"),
                    *("attention_backend", "mtp_depth"),
                },
            ),
        }
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:12]

    def findings(self) -> list[Finding]:
        """What no single field can see: combinations that cannot work."""
        from glm53.deployment.rules import RULES  # rules read deployments

        return [finding for rule in RULES for finding in rule(self)]

    def aggregate(self) -> Deployment:
        """The same model and engine as one worker that does both, to compare outputs with."""
        return self.model_copy(update={"name": f"{self.name}-agg", "workers": Workers(aggregated=1)})

    def with_layout(self, layout: Literal["BLHNC", "stock"]) -> Deployment:
        """The same deployment with another KV layout; with "stock" block allocation is vLLM's, too."""
        changes: dict[str, Any] = {"layout": layout}
        if layout == "stock":
            changes |= {"block_allocation": "stock", "eviction_window": 0}
        return self.model_copy(update={"kv_transfer": self.kv_transfer.model_copy(update=changes)})
