"""The command line ``mooncake-tier``. Exit codes: 0 well, 1 something is wrong or failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from typing import Any

from mooncake_tier import keys
from mooncake_tier.client.connection import StoreAddress, rehearse
from mooncake_tier.client.master import Master
from mooncake_tier.errors import NodeFailed, TierRefused, TierUnavailable
from mooncake_tier.node.arguments import node_settings, parser
from mooncake_tier.node.doctor import collect
from mooncake_tier.node.findings import Workload, examine
from mooncake_tier.node.serve import read_state, serve
from mooncake_tier.stock import MooncakeStore
from stockpatch.versions import UnsupportedVersion

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Entry point of `mooncake-tier`; returns the exit status."""
    given = parser().parse_args(argv)
    try:
        return _COMMANDS[given.command](given)
    except TierRefused as error:
        return _failed(error, 2)
    except (NodeFailed, TierUnavailable, UnsupportedVersion) as error:
        return _failed(error, 1)


def _failed(error: Exception, code: int) -> int:
    print(f"mooncake-tier: {error}", file=sys.stderr)
    return code


def _serve(given: argparse.Namespace) -> int:
    # What ends a service must end its processes: raise where the code waits.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    return serve(node_settings(given), given.run_dir, given.open_transfer_ports, given.json)


def _doctor(given: argparse.Namespace) -> int:
    address, metrics = _where(given)
    workload = None
    if given.tokens:
        workload = Workload(
            sessions=given.sessions,
            tokens=given.tokens,
            bytes_per_token=given.bytes_per_token,
            gigabytes_per_s=given.gigabytes_per_s,
        )
    facts = collect(address, metrics, workload, given.report, given.lease, given.protocol)
    findings = examine(facts)
    if given.json:
        _print({"findings": [asdict(one) for one in findings], "wheels": dict(facts.wheels), "xxhash": facts.xxhash})
    else:
        for one in findings:
            print(f"{one.code}\n  seen:   {one.seen}\n  needed: {one.needed}\n  fix:    {one.fix}")
        asked = "the store answers" if address else "the store was not asked: give --run-dir or --master"
        print(f"{len(findings)} findings" if findings else f"no finding; {asked}")
    return 1 if findings else 0


def _stats(given: argparse.Namespace) -> int:
    _, metrics = _where(given)
    if metrics is None:
        raise TierUnavailable("no master is named. Give --metrics HOST:PORT, or the --run-dir of mooncake-tier serve.")
    figures = metrics.stats()
    counted: dict[str, int] = {}
    for key in metrics.keys() if given.namespaces else ():
        counted[key.partition("/")[0]] = counted.get(key.partition("/")[0], 0) + 1
    if given.json:
        _print(figures | ({"namespaces": counted} if given.namespaces else {}))
    else:
        for name, value in figures.items():
            print(f"{name:16} {value:,}")
        for name, value in sorted(counted.items()):
            print(f"{name}  {value:,} keys")
    return 0


def _flush(given: argparse.Namespace) -> int:
    pattern = keys.namespace_pattern(given.namespace)
    address, _ = _where(given)
    if address is None:
        raise TierUnavailable("no master is named. Give --master HOST:PORT, or the --run-dir of mooncake-tier serve.")
    rehearse(address)
    store = MooncakeStore(address.host, address.master, address.protocol, address.device, 1 << 20)
    try:
        removed = store.remove_matching(pattern)
    finally:
        store.close()
    if removed < 0:
        raise TierUnavailable(f"the master answered {removed}: nothing is known to be removed. Run it again.")
    _print({"namespace": given.namespace, "removed": removed}) if given.json else print(f"removed {removed} blocks")
    return 0


def _where(given: argparse.Namespace) -> tuple[StoreAddress | None, Master | None]:
    """The store and its metrics: as given, else those of the node that runs in the run folder."""
    state = read_state(given.run_dir)
    master = given.master or (state or {}).get("master")
    metrics = given.metrics or (state or {}).get("metrics")
    host = given.host or (state or {}).get("host") or "127.0.0.1"
    address = StoreAddress(master=master, host=host, protocol=given.protocol) if master else None
    if metrics is None:
        return address, None
    name, _, port = metrics.rpartition(":")
    if not name or not port.isdigit():
        raise TierRefused(f"--metrics {metrics}", "the port is missing", "HOST:PORT", "Give it whole")
    return address, Master(name, int(port))


def _print(value: Any) -> None:
    print(json.dumps(value, indent=1), flush=True)


_COMMANDS = {"serve": _serve, "doctor": _doctor, "stats": _stats, "flush": _flush}

if __name__ == "__main__":
    sys.exit(main())
