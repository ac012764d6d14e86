"""One role of a recipe on one host: what the recipe switches on there, and what all roles share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from glm53.commands.engine import engine_environment
from glm53.commands.frontend import frontend_environment
from glm53.deployment import Deployment
from glm53.deployment.roles import Role

__all__ = ["HOST_ROLES", "HostRole", "Needs"]

HostRole = Literal["prefill", "decode", "aggregated", "frontend"]
HOST_ROLES: tuple[HostRole, ...] = ("prefill", "decode", "aggregated", "frontend")


@dataclass(frozen=True)
class Needs:
    """One role of a recipe, on one host."""

    deployment: Deployment
    role: HostRole

    @property
    def worker(self) -> Role | None:
        """The role's section; None for a frontend."""
        return None if self.role == "frontend" else getattr(self.deployment.roles, self.role)

    @property
    def tiered(self) -> bool:
        """Whether a part of the DRAM tier is on this host."""
        return self.deployment.tier is not None and self.role in ("prefill", "aggregated")

    @property
    def gpus(self) -> int:
        """GPUs of this host that one group of the role takes."""
        return min(self.worker.gpus, self.deployment.machine.gpus) if self.worker else 0

    @property
    def plugins(self) -> frozenset[str]:
        """Names of the plugins that the recipe switches on here."""
        engine, tools, found = self.deployment.engine, self.deployment.tools, set[str]()
        if self.worker is None:
            return frozenset({"dynamo_structural_tags"} if tools.frontend == "structural_tags" else ())
        if self.role != "aggregated":
            found.add("vllm_blhnc")
        if engine.kv_cache_dtype == "nvfp4_ds_mla" and engine.nvfp4_kernel != "off":
            found.add("flashinfer_nvfp4")
        if tools.structural_tags != "off":
            found.add("dynamo_structural_tags")
        if self.role != "prefill" and self.deployment.capture is not None:
            found.add("rl_capture")
        if not self.deployment.machine.gpus:
            found.add("vllm_cpu_dsa")
        return frozenset(found)

    @property
    def environment(self) -> dict[str, str]:
        """What the recipe sets for the role's process."""
        if self.role == "frontend":
            return frontend_environment(self.deployment)
        return engine_environment(self.deployment, self.role)

    def agreed(self) -> dict[str, Any]:
        """Dotted key -> value of everything that prefill and decode must share."""
        data = self.deployment.model_dump(mode="json")
        engine = {
            *("dtype", "block_size", "kv_cache_dtype", "max_model_len", "nvfp4_policy", "nvfp4_fold"),
            *("attention_backend", "mtp_depth"),
        }
        kept = {
            "model": {"path", "repository", "revision", "served_name", "weights", "adapters"},
            "engine": engine,
            "kv_transfer": set(data["kv_transfer"]),
            "tools": set(data["tools"]),
        }
        found = {f"{section}.{key}": data[section][key] for section, keys in kept.items() for key in sorted(keys)}
        return found | {key: data[key] for key in ("release", "hardware", "router", "tier")}

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.deployment.name, "role": self.role, "agreed": self.agreed()}
