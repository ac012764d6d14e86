"""The DRAM tier as the rendered processes have it: one master, stores that find it, engines that find both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from glm53.deployment import Finding
from glm53.deployment.facts import wrong_lease
from glm53.lint.agreement import TIER_CONNECTORS, tier_entry
from glm53.lint.commands import Command, option

__all__ = ["problems", "section"]

#: Where a process of a cluster listens: the address of its pod, or of its node. Mooncake's default is loopback.
_OWN = ("from status.podIP", "${NODE_ADDRESS}")


def problems(commands: Sequence[Command], engines: Sequence[Command], *, cluster: bool) -> Iterator[Finding]:
    """cluster: master and stores are processes of their own, on several machines."""
    parts = [command for command in commands if command.kind.startswith("tier")]
    masters = [command for command in parts if command.kind != "tier-store"]
    stores = [command for command in parts if command.kind != "tier-master"]
    wanting = [command for command in engines if tier_entry(command)]
    if not bool(wanting) == bool(masters) == bool(stores):
        yield _tier_found("tier-missing", "engines, master and stores of the tier are not all there.")
    if len(masters) > 1 or (cluster and any(command.kind == "tier" for command in masters)):
        names = ", ".join(command.where for command in masters)
        yield _tier_found("tier-masters", f"{names}: one master, which holds no blocks, knows where all blocks are.")
    for master in masters:
        yield from _found_by(master, stores, wanting)
    for engine in wanting:
        yield from _tier_entry(engine)
        protocols = {option(one, "--protocol") for one in parts} - {section(engine).get("protocol")}
        if protocols:
            yield _found(
                "tier-protocol", engine, f"it speaks another protocol than stores: {sorted(map(str, protocols))}."
            )
    for command in parts:
        yield from _node(command, cluster=cluster)
    identities = [{key: section(one).get(key) for key in ("model", "revision", "adapter")} for one in wanting]
    if any(one != identities[0] or not one["model"] for one in identities):
        yield _tier_found("tier-namespace", f"blocks belong to {identities}: engines would not find each other's.")


def section(command: Command) -> dict[str, Any]:
    """An engine's settings of the tier; empty without one."""
    found = (tier_entry(command).get("kv_connector_extra_config") or {}).get("mooncake_tier")
    return found if isinstance(found, dict) else {}


def _found_by(master: Command, stores: Sequence[Command], wanting: Sequence[Command]) -> Iterator[Finding]:
    """Stores and engines look for the master at one address, on its ports, and count on its lease."""
    calls, metrics = (f":{option(master, name)}" for name in ("--rpc-port", "--metrics-port"))
    lease = _number(option(master, "--lease"))
    if why := wrong_lease(lease):
        yield _found("tier-lease", master, f"with leases of {lease:g} s, {why}.")
    addresses = {str(section(engine).get("master")) for engine in wanting}
    for store in stores:
        address = option(store, "--master") or ""
        if store.kind == "tier-store" and not (address.endswith(calls) and {address} >= addresses):
            others = ", ".join(sorted(addresses))
            yield _found(
                "tier-address", store, f"its master is {address!r}, on port {calls[1:]}, engines' is {others}."
            )
    for engine in wanting:
        for key, port in (("master", calls), ("metrics", metrics)):
            if not str(section(engine).get(key)).endswith(port):
                yield _found("tier-address", engine, f"it looks for the {key} elsewhere than on port {port[1:]}.")
        if section(engine).get("lease_s") != lease:
            yield _found("tier-lease", engine, f"it counts on leases of {section(engine).get('lease_s')} s.")


def _tier_entry(engine: Command) -> Iterator[Finding]:
    entry, settings = tier_entry(engine), section(engine)
    name = str(entry["kv_connector"])
    if entry.get("kv_connector_module_path") != TIER_CONNECTORS[name]:
        yield _found("tier-module", engine, f"vLLM has no {name} of its own; it is in {TIER_CONNECTORS[name]}.")
    if entry.get("kv_role") != "kv_both":
        yield _found("connector-role", engine, f"{name} saves and loads, so its kv_role is kv_both.")
    if name == "TierStoreConnector" and entry.get("kv_load_failure_policy") != "recompute":
        yield _found("failure-policy", engine, f"{name} starts with kv_load_failure_policy recompute only.")
    handshake = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    if settings.get("host") not in (f"$({handshake})", engine.env.get(handshake)):
        yield _found("tier-address", engine, f"host={settings.get('host')!r}, where NIXL has its worker's address.")


def _node(command: Command, *, cluster: bool) -> Iterator[Finding]:
    """A master's or store's own address and memory."""
    pool = option(command, "--pool")
    if command.kind != "tier-master" and not re.fullmatch(r"[1-9]\d*MiB", pool or ""):
        yield _found("tier-pool", command, f"--pool {pool}: Mooncake's default of 1 GiB, or no size.")
    if not cluster:
        return
    host = option(command, "--host") or ""
    reference = re.fullmatch(r"\$\((\w+)\)", host)
    if (command.env.get(reference[1]) if reference else host) not in _OWN:
        yield _found("tier-address", command, f"it listens on {host!r}, which is not its pod's or node's address.")


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _tier_found(code: str, message: str) -> Finding:
    return Finding(code, "tier", message, "Render the recipe again, and change the recipe rather than the file.")


def _found(code: str, command: Command, message: str) -> Finding:
    return Finding(code, command.where, message, "Render the recipe again, and change the recipe rather than the file.")
