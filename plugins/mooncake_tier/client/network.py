"""Interfaces of this machine, and on which of them a process listens. Linux, standard library only."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from mooncake_tier.errors import SettingRefused

__all__ = ["Listener", "address_of", "listeners"]

_SIOCGIFADDR = 0x8915
_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket of a process."""

    pid: int
    host: str
    port: int

    @property
    def everywhere(self) -> bool:
        """Whether it accepts connections on every interface."""
        return ipaddress.ip_address(self.host).is_unspecified

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(name: str) -> str:
    """The IPv4 address of an interface such as ``eth0``, or the address itself if it is one of this machine's.

    Raises `SettingRefused` for all interfaces, and for what is not here.
    """
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError:
        return _interface_address(name)
    if address.is_unspecified:
        raise SettingRefused(
            f"{name!r}",
            "it would open the store, which knows no passwords, on every interface",
            "127.0.0.1, or one interface or its address",
            "Name the interface that the peers are on",
        )
    with socket.socket() as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            raise SettingRefused(
                f"{name!r} ({error.strerror})", "it is no address of this machine", _here(), "Choose one of them"
            ) from None
    return str(address)


def listeners(pid: int) -> list[Listener]:
    """Listening TCP sockets of a process, by port; empty if it has ended or is another user's."""
    sockets = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path)):
                    sockets.add(found[1])
    found_here = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and fields[9] in sockets:
                    host, _, port = fields[1].partition(":")
                    found_here.append(Listener(pid, _address(host), int(port, 16)))
    return sorted(found_here, key=lambda one: one.port)


def _address(hexadecimal: str) -> str:
    """An address as the kernel shows it: words of the machine's byte order."""
    words = [int(hexadecimal[at : at + 8], 16) for at in range(0, len(hexadecimal), 8)]
    address = ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _interface_address(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise SettingRefused(
                f"{name!r}", "it is no interface with an IPv4 address here", _here(), "Choose one of them"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def _here() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return f"127.0.0.1, one of {', '.join(names)}, or its address"
