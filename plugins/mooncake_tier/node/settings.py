"""The settings of one machine's master and pool: one place for addresses, ports, sizes and times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mooncake_tier.client.connection import PROTOCOLS, StoreAddress
from mooncake_tier.client.network import address_of
from mooncake_tier.errors import SettingRefused

__all__ = ["NodeSettings", "byte_count"]

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_LEAST_POOL = 64 << 20


def byte_count(text: str) -> int:
    """``64GiB`` and the like in bytes. Raises `SettingRefused`."""
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise SettingRefused(
            f"{text!r}", "its size is not clear", "a whole number with B, KiB, MiB, GiB or TiB", "Write it so"
        )
    return int(match[1]) * _UNITS[match[2].upper()]


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What `mooncake-tier serve` starts.

    host: address or interface that everything listens on. rpc_port, metrics_port: of the master. pool_port: of the
    pool's process. pool_bytes: DRAM that blocks may take; 0 starts no pool. lease_s: how long a found block is safe
    from eviction. owner_ttl_s: seconds until the master forgets the blocks of a pool that ended.
    device: RDMA device. threads: of the pool. etcd: ``host:port`` with semicolons between, for high availability
    with metadata that survives the master; empty without. master: ``host:port`` of a master elsewhere; then none is
    started here.
    """

    host: str = "127.0.0.1"
    rpc_port: int = 50051
    metrics_port: int = 9003
    pool_port: int = 50052
    pool_bytes: int = 1 << 30
    lease_s: float = 30.0
    owner_ttl_s: int = 10
    protocol: str = "tcp"
    device: str = ""
    threads: int = 4
    etcd: str = ""
    master: str = ""

    def __post_init__(self) -> None:
        address_of(self.host)
        ports = (self.rpc_port, self.metrics_port, self.pool_port)
        for port in ports:
            if type(port) is not int or not 1 <= port <= 65535:
                raise SettingRefused(f"port={port!r}", "it is no TCP port", "1 to 65535", "Choose another")
        if len(set(ports)) != len(ports):
            raise SettingRefused(f"ports={ports}", "two cannot share one", "three different ports", "Change one")
        if self.pool_bytes and self.pool_bytes < _LEAST_POOL:
            raise SettingRefused(
                f"pool_bytes={self.pool_bytes}", "not even a few blocks fit", "64 MiB or more, or 0", "Raise it"
            )
        if not self.pool_bytes and self.master:
            raise SettingRefused("pool_bytes=0 with a master elsewhere", "nothing would run", "one of them", "Choose")
        if not 0.1 <= self.lease_s <= 86_400 or self.owner_ttl_s < 1 or self.threads < 1:
            raise SettingRefused(
                f"lease_s={self.lease_s} owner_ttl_s={self.owner_ttl_s} threads={self.threads}",
                "Mooncake cannot work with them",
                "lease_s 0.1 to 86400, the others at least 1",
                "Correct them",
            )
        if self.protocol not in PROTOCOLS:
            raise SettingRefused(f"protocol={self.protocol!r}", "unknown", " or ".join(PROTOCOLS), "Choose one")
        _ = self.store

    @property
    def address(self) -> str:
        """The IPv4 address of `host`."""
        return address_of(self.host)

    @property
    def store(self) -> StoreAddress:
        """Where clients on this machine find the store."""
        master = self.master or (f"etcd://{self.etcd}" if self.etcd else f"{self.address}:{self.rpc_port}")
        return StoreAddress(master=master, host=self.address, protocol=self.protocol, device=self.device)

    def master_command(self, package: Path) -> list[str]:
        """The command that starts the master; package: Mooncake's folder."""
        command = [
            str(package / "mooncake_master"),
            f"--rpc_address={self.address}",
            f"--rpc_port={self.rpc_port}",
            f"--metrics_host={self.address}",
            f"--metrics_port={self.metrics_port}",
            f"--default_kv_lease_ttl={round(self.lease_s * 1000)}",
            f"--client_ttl={self.owner_ttl_s}",
        ]
        if self.etcd:
            command += ["--enable_ha=true", f"--etcd_endpoints={self.etcd}", "--enable_oplog=true"]
        return command

    def pool_command(self, package: Path) -> list[str]:
        """The command that starts the process whose memory the blocks lie in."""
        return [
            str(package / "mooncake_client"),
            f"--host={self.address}",
            f"--port={self.pool_port}",
            f"--global_segment_size={self.pool_bytes}",
            "--local_buffer_size=0",
            f"--master_server_address={self.store.master}",
            "--metadata_server=P2PHANDSHAKE",
            f"--protocol={self.protocol}",
            f"--device_names={self.device}",
            f"--threads={self.threads}",
        ]
