"""The arguments of ``mooncake-tier``, and the help that explains them."""

from __future__ import annotations

import argparse
from pathlib import Path

from mooncake_tier.client.connection import PROTOCOLS
from mooncake_tier.node.serve import RUN_DIR
from mooncake_tier.node.settings import NodeSettings, byte_count

__all__ = ["node_settings", "parser"]


def node_settings(given: argparse.Namespace) -> NodeSettings:
    """What `serve` was told. Raises what `NodeSettings` and `byte_count` raise."""
    return NodeSettings(
        host=given.host,
        rpc_port=given.rpc_port,
        metrics_port=given.metrics_port,
        pool_port=given.pool_port,
        pool_bytes=byte_count(given.pool),
        lease_s=given.lease,
        owner_ttl_s=given.owner_ttl,
        protocol=given.protocol,
        device=given.device,
        threads=given.threads,
        etcd=given.etcd,
        master=given.master,
    )


def parser() -> argparse.ArgumentParser:
    """The parser; ``command`` of what it returns is the name of the command."""
    shown = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        prog="mooncake-tier",
        description="A DRAM tier for KV blocks on stock Mooncake: start one, check it, look at it, empty a part of it.",
        epilog="Exit status: 0 well, 1 something is wrong or failed, 2 wrong usage. Each command has its own --help.",
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    one = commands.add_parser(
        "serve",
        help="run Mooncake's master and this machine's pool",
        formatter_class=shown,
        description=(
            "Run Mooncake's master and a pool of this machine's memory until SIGTERM or Ctrl-C. Says `ready` when\n"
            "blocks can be stored. All ports listen on --host alone. A process that ends is started again; the fourth\n"
            "end within a minute gives up with exit status 1. If this process is killed, they all end.\n\n"
            "One machine:       mooncake-tier serve --pool 64GiB\n"
            "A further machine: mooncake-tier serve --pool 64GiB --host eth0 --master 10.0.0.1:50051\n"
            "Surviving masters: mooncake-tier serve --pool 64GiB --host eth0 --etcd '10.0.0.1:2379;10.0.0.2:2379'\n"
        ),
    )
    one.add_argument("--pool", default="1GiB", metavar="SIZE", help="memory for blocks, 0 for a master alone (1GiB)")
    one.add_argument("--host", default="127.0.0.1", help="interface or its address to listen on (127.0.0.1)")
    one.add_argument("--rpc-port", type=int, default=50051, metavar="PORT", help="of the master (50051)")
    one.add_argument("--metrics-port", type=int, default=9003, metavar="PORT", help="of the master's metrics (9003)")
    one.add_argument("--pool-port", type=int, default=50052, metavar="PORT", help="of the pool (50052)")
    one.add_argument(
        "--lease", type=float, default=30.0, metavar="S", help="seconds that a found block is safe from eviction (30)"
    )
    one.add_argument(
        "--owner-ttl", type=int, default=10, metavar="S", help="seconds until blocks of a dead pool are forgotten (10)"
    )
    one.add_argument("--threads", type=int, default=4, metavar="N", help="of the pool (4)")
    one.add_argument("--etcd", default="", metavar="HOST:PORT", help="high availability: keys survive the master")
    one.add_argument("--master", default="", metavar="HOST:PORT", help="a master that runs elsewhere: start none here")
    one.add_argument(
        "--open-transfer-ports",
        action="store_true",
        help="accept transfer ports on every interface where no C compiler can keep them on --host",
    )
    _transport(one)
    _common(one)

    two = commands.add_parser(
        "doctor",
        help="say what is wrong with this machine and its store",
        formatter_class=shown,
        description=(
            "Check wheels, shared libraries, RDMA, open ports, the store if one is named, pool and lease against the\n"
            "workload, and whether workers make the same keys. Changes nothing. Each finding has a code (explained\n"
            "in the documentation), what was seen, what is needed, and the fix. Exit status 1 if there is one.\n\n"
            "mooncake-tier doctor --run-dir build/tier --sessions 8 --tokens 146000 --bytes-per-token 48672\n"
            "mooncake-tier doctor --report reports/\n"
        ),
    )
    two.add_argument(
        "--report", type=Path, action="append", default=[], metavar="PATH", help="a worker's report, or a folder"
    )
    two.add_argument("--sessions", type=int, default=1, metavar="N", help="workload: agents at the same time (1)")
    two.add_argument("--tokens", type=int, default=0, metavar="N", help="workload: tokens of the longest prompt")
    two.add_argument("--bytes-per-token", type=int, default=48_672, metavar="N", help="workload: KV of a token (48672)")
    two.add_argument(
        "--gigabytes-per-s", type=float, default=1.0, metavar="X", help="workload: at which one prompt is read (1)"
    )
    two.add_argument("--lease", type=float, metavar="S", help="the master's lease, if it does not run here")
    _store(two)

    three = commands.add_parser("stats", help="show how full the pools are and what was evicted")
    three.add_argument("--namespaces", action="store_true", help="also count keys by namespace; lists all keys")
    _store(three)

    four = commands.add_parser(
        "flush",
        help="remove the blocks of one namespace",
        description="Remove every block of one namespace, leased or not, and no other block.",
    )
    four.add_argument("--namespace", required=True, help="as a worker's log or report says it: mt1- and 32 digits")
    _store(four)
    return whole


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="HOST:PORT", help="the master (default: that of --run-dir)")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="the master's metrics (default: those of --run-dir)")
    parser.add_argument("--host", help="this machine's address for the store")
    _transport(parser)
    _common(parser)


def _transport(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--protocol", choices=PROTOCOLS, default="tcp", help="transport of blocks (tcp)")
    if parser.prog.endswith("serve"):
        parser.add_argument("--device", default="", help="RDMA device")


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=Path, default=RUN_DIR, metavar="DIR", help=f"logs and state ({RUN_DIR})")
    parser.add_argument("--json", action="store_true", help="print data as JSON")
