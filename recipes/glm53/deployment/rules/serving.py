"""Steps, tiers, tools, ports and capacity: what is set in one place and breaks in another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from glm53.deployment.facts import TIER_LEASE_S, wrong_lease
from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment

__all__ = ["findings", "port_ranges"]


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with steps, `tier`, `capacity`, `frontend` and `ports`."""
    yield from _steps(deployment)
    yield from _tier(deployment)
    yield from _capacity(deployment)
    yield from _local(deployment)
    yield from _ports(deployment)
    yield from _frontend(deployment)


def _steps(deployment: Deployment) -> Iterator[Finding]:
    engine = deployment.engine
    seen = set()
    for name, role, _ in deployment.served():
        tokens = role.max_batched_tokens or engine.max_batched_tokens
        sequences = (role.max_sequences or engine.max_sequences) * (1 + engine.mtp_depth)
        own = role.max_batched_tokens or role.max_sequences
        field = f"roles.{name}.max_batched_tokens" if own else "engine.max_batched_tokens"
        if tokens < sequences and field not in seen:
            seen.add(field)
            drafts = f" with {engine.mtp_depth} drafts each" if engine.mtp_depth else ""
            yield Finding(
                "batch",
                field,
                f"{tokens} is below max_sequences={role.max_sequences or engine.max_sequences}{drafts}: some sequences "
                "could never decode.",
                "Raise max_batched_tokens or lower max_sequences.",
            )


def _tier(deployment: Deployment) -> Iterator[Finding]:
    tier = deployment.tier
    if tier is None:
        return
    if deployment.hardware == "cpu" and tier.protocol != "tcp":
        yield Finding(
            "tier-protocol",
            "tier.protocol",
            f"{tier.protocol} needs an RDMA device, and hardware: cpu is served over loopback.",
            "Set tcp.",
        )
    if tier.chunk_tokens % deployment.engine.block_size:
        yield Finding(
            "tier-chunk",
            "tier.chunk_tokens",
            f"{tier.chunk_tokens} tokens are no whole number of blocks of {deployment.engine.block_size}.",
            "Use a multiple of engine.block_size.",
        )
    if why := wrong_lease(tier.lease_seconds):
        yield Finding(
            "tier-lease",
            "tier.lease_seconds",
            f"{tier.lease_seconds} s: {why}.",
            f"Use {TIER_LEASE_S.start} to {TIER_LEASE_S.stop - 1} s.",
        )
    if int(tier.memory) < 2 * int(tier.buffer):
        yield Finding(
            "tier-memory",
            "tier.memory",
            f"{int(tier.memory) >> 20} MiB a node, but each engine stages {int(tier.buffer) >> 20} MiB.",
            "Give the tier at least twice the buffer.",
        )


def _frontend(deployment: Deployment) -> Iterator[Finding]:
    if deployment.frontend.busy_prefill_tokens and deployment.router != "kv":
        yield Finding(
            "busy-prefill-router",
            "frontend.busy_prefill_tokens",
            f"router={deployment.router} does not count waiting prompt tokens, so nothing would be refused.",
            "Set router: kv, or use frontend.busy_blocks.",
        )
    if deployment.tools.frontend != "stock" and set(deployment.targets) != {"local"}:
        yield Finding(
            "frontend-on-cluster",
            "tools.frontend",
            f"{deployment.tools.frontend} needs its plugin and xgrammar, which the image of Dynamo's frontend lacks.",
            "Use stock, or target local.",
        )


def _capacity(deployment: Deployment) -> Iterator[Finding]:
    capacity, decode = deployment.capacity, deployment.workers.decode
    if capacity.priority is not None and deployment.cluster.priority_class is not None:
        yield Finding(
            "two-priorities",
            "capacity.priority",
            f"pods have one class, and cluster.priority_class={deployment.cluster.priority_class} names it.",
            "Leave one of the two out.",
        )
    if capacity.priority is not None and "kubernetes" not in deployment.targets:
        yield Finding(
            "priority-target", "capacity.priority", "only Kubernetes has such classes.", "Leave it out, or target it."
        )
    if capacity.policy == "reserved":
        if capacity.min_decode or capacity.max_decode:
            yield Finding(
                "reserved-range",
                "capacity",
                "reserved capacity keeps its groups, and here are numbers between which they come and go.",
                "Set policy: serverless, or leave min_decode and max_decode out.",
            )
        return
    if deployment.targets != ("kubernetes",):
        yield Finding(
            "serverless-target",
            "capacity.policy",
            "only Kubernetes lets groups come and go.",
            "Use targets: [kubernetes], or policy: reserved.",
        )
    least, most = capacity.min_decode, capacity.max_decode
    if least is None or most is None or not least <= decode <= most:
        yield Finding(
            "serverless-range",
            "capacity",
            f"workers.decode={decode} is not between min_decode={least} and max_decode={most}.",
            "Give both, around workers.decode.",
        )
    if deployment.frontend.busy_blocks is None:
        yield Finding(
            "serverless-admission",
            "frontend.busy_blocks",
            "groups come and go, so that there can be too few, and nothing would tell clients to come back later.",
            "Set a fraction such as 0.9; above it the frontend answers 503.",
        )


def _local(deployment: Deployment) -> Iterator[Finding]:
    if "local" in deployment.targets and deployment.frontend.replicas > 1:
        yield Finding(
            "local-frontends",
            "frontend.replicas",
            f"{deployment.frontend.replicas} frontends, but the local stack has one port for clients.",
            "Use 1.",
        )


def port_ranges(deployment: Deployment) -> dict[str, range]:
    """Key of `ports` -> every port that a node may use for it.

    vLLM adds the data-parallel rank to the ports of NIXL's side channel and of KV events. Groups that share a node
    and an address, as under Slurm, follow one another.
    """
    ports, gpus = deployment.ports, max(deployment.machine.gpus, 1)
    ranks = max([1, *(role.data_parallel for _, role, _ in deployment.served())])
    widths = {"side_channel": gpus * ranks, "kv_events": gpus * ranks, "system": gpus, "data_parallel": gpus}
    return {key: range(base, base + widths.get(key, 1)) for key, base in ports.model_dump().items()}


def _ports(deployment: Deployment) -> Iterator[Finding]:
    ranges = sorted(port_ranges(deployment).items(), key=lambda item: (item[1].start, item[0]))
    for (name, used), (other, following) in pairwise(ranges):
        if used.stop > following.start:
            yield Finding(
                "port-clash",
                f"ports.{other}",
                f"{following.start} lies in {used.start} to {used.stop - 1}, which {name} uses.",
                f"Choose a port from {used.stop} on.",
            )
    if ranges and ranges[-1][1].stop > 1 << 16:
        yield Finding("port-clash", f"ports.{ranges[-1][0]}", "it counts up beyond port 65535.", "Choose a lower port.")
    for key, fixed in (("http", 8000), ("system", 9090)):
        if "kubernetes" in deployment.targets and getattr(deployment.ports, key) != fixed:
            yield Finding(
                "operator-port",
                f"ports.{key}",
                f"Dynamo's operator expects {fixed}, in its services and its probes.",
                f"Use {fixed}, or targets without kubernetes.",
            )
    system = port_ranges(deployment)["system"]
    if system.stop > 1 << 15:
        yield Finding(
            "system-port",
            "ports.system",
            f"{system.start}: Dynamo reads it as a signed 16-bit number and stops above 32767.",
            "Choose a lower port.",
        )
