"""How a process reaches the store: the address, a rehearsal that cannot freeze it, and the client."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass

from mooncake_tier.client.network import listeners
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import SettingRefused, TierUnavailable
from mooncake_tier.options import Options
from mooncake_tier.stock import MooncakeStore

__all__ = ["PROTOCOLS", "StoreAddress", "connect", "open_store", "rehearse"]

PROTOCOLS = ("tcp", "rdma")

_log = logging.getLogger("mooncake_tier")


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Where the store is. host: this machine's address for its peers, never that of all interfaces.

    master: ``host:port``, or ``etcd://host:port[;host:port]`` with high availability. device: RDMA device, or empty.
    """

    master: str
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    device: str = ""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SettingRefused(
                f"protocol={self.protocol!r}", "Mooncake is used with these", " or ".join(PROTOCOLS), "Choose one"
            )
        if self.host in ("", "0.0.0.0", "::", "*"):
            raise SettingRefused(
                f"host={self.host!r}",
                "it stands for every interface, and peers could not reach it",
                "the address of one interface, or 127.0.0.1",
                "Name it",
            )
        where = self.master.partition("://")[2] or self.master
        if not all(one.rpartition(":")[0] and one.rpartition(":")[2].isdigit() for one in where.split(";")):
            raise SettingRefused(
                f"master={self.master!r}", "the port is missing", "host:port or etcd://host:port", "Give it whole"
            )


def connect(
    address: StoreAddress, namespace: str, options: Options | None = None, within_s: float = 30.0
) -> TierClient:
    """A client of the store. Raises `TierUnavailable` within about `within_s` seconds if it cannot be had."""
    return TierClient(open_store(address, within_s), namespace, options)


def open_store(address: StoreAddress, within_s: float = 30.0) -> MooncakeStore:
    """The store itself, for a client whose namespace is not known yet; raises as `connect`.

    Mooncake's set-up stops every Python thread of the process, for 90 s if the master does not answer. So another
    process rehearses it first.
    """
    rehearse(address, within_s)
    before = set(listeners(os.getpid()))
    store = MooncakeStore(address.host, address.master, address.protocol, address.device)
    if opened := [str(one) for one in listeners(os.getpid()) if one.everywhere and one not in before]:
        _log.warning(
            "mooncake_tier: Mooncake listens on every interface at %s in this process, and who reaches that can write "
            "its memory. Start it with the LD_PRELOAD line of mooncake-tier serve, which keeps the ports on %s, or put "
            "a firewall before them",
            ", ".join(opened),
            address.host,
        )
    return store


def rehearse(address: StoreAddress, within_s: float = 30.0) -> None:
    """Set up a client in a process of its own and ask the master for a key; raises `TierUnavailable`."""
    _reach(address)
    command = [sys.executable, "-m", "mooncake_tier.client.rehearsal", json.dumps(asdict(address))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        raise TierUnavailable(
            f"master={address.master} did not answer within {within_s} s: no block can be stored or found. "
            "Start it (mooncake-tier serve), or correct the address; `mooncake-tier doctor` tells more."
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TierUnavailable(said)


def _reach(address: StoreAddress) -> None:
    """Mooncake would knock at a closed port for 90 s."""
    where = address.master.partition("://")[2] or address.master
    refused = []
    for one in where.split(";"):
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
            return
        except OSError as error:
            refused.append(f"{one} ({error.strerror or error})")
    raise TierUnavailable(
        f"no connection to {', '.join(refused)}: no block can be stored or found. Start the store "
        "(mooncake-tier serve), or correct the address."
    )
