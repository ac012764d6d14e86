"""Which process runs where: groups on whole nodes, small groups side by side, roles never mixed on a node."""

from __future__ import annotations

from dataclasses import dataclass

from glm53.deployment import Deployment, RoleName

__all__ = ["Slot", "node_count", "place"]


@dataclass(frozen=True)
class Slot:
    """One worker process.

    group: number of its group within the role. rank, nodes: which node of the group, and how many the group has.
    node: node of the job, 0 the first. first_gpu, gpus: GPUs of the node. index: number of the process on its node.
    """

    role: RoleName
    group: int
    rank: int
    nodes: int
    node: int
    first_gpu: int
    gpus: int
    index: int

    @property
    def name(self) -> str:
        """A name of its own: role, group, and node in the group."""
        return f"{self.role}-{self.group}" + (f"-{self.rank}" if self.nodes > 1 else "")


def place(deployment: Deployment) -> list[Slot]:
    """Every worker process, by role and group; the frontend and Mooncake's master share the first node."""
    per_node, node, slots = deployment.machine.gpus, 0, []
    for name, role, groups in deployment.served():
        nodes = deployment.nodes(name)
        beside = max(per_node // role.gpus, 1) if nodes == 1 else 1
        gpus = min(role.gpus, per_node)
        for group in range(groups):
            index = group % beside
            if group and not index:
                node += nodes
            slots += [Slot(name, group, rank, nodes, node + rank, index * gpus, gpus, index) for rank in range(nodes)]
        node += nodes
    return slots


def node_count(slots: list[Slot]) -> int:
    """Nodes of the job."""
    return max(slot.node for slot in slots) + 1
