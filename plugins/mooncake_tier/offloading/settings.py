"""What a deployment may set of the secondary tier: ``kv_connector_extra_config.mooncake_tier``, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mooncake_tier.client.connection import StoreAddress
from mooncake_tier.errors import SettingRefused
from mooncake_tier.identity.deployment import Identity
from mooncake_tier.options import Options

__all__ = ["KEY", "MEDIA", "WRITES", "OffloadSettings"]

KEY = "mooncake_tier"
MEDIA = ("CPU", "EXTERNAL")
WRITES = ("all", "reused")


@dataclass(frozen=True, kw_only=True)
class OffloadSettings:
    """The tier's own settings; those of `StoreAddress`, `Identity` and `Options` stand beside them under one key.

    metrics: ``host:port`` of the master's metrics, where evictions are seen; needed for events. poll_s: seconds between
    two looks. medium: what events call the pool: CPU for one on this node, EXTERNAL for one of several nodes.
    prefetch: whether blocks are loaded for requests that still wait. prefetch_bytes: host memory that they may fill; 0
    is half of ``cpu_bytes_to_use``. loading_bytes: what may be under way to it at a time. least_rate: bytes a second
    that the store is given time for, beyond `load_s`. opening_s: how long the first requests wait for the store.
    write: all, or reused: only what was asked for twice, or continues a session. session_bytes: what sessions between
    two turns keep from eviction; 0 is none. session_idle_s: when such a session is over. revision_file: a file whose
    text tells weights apart that were updated while serving. report_dir: folder for each worker's report, which
    ``mooncake-tier doctor --report`` compares.
    """

    address: StoreAddress
    identity: Identity
    options: Options
    metrics: str = ""
    poll_s: float = 5.0
    medium: str = "CPU"
    prefetch: bool = True
    prefetch_bytes: int = 0
    loading_bytes: int = 2 << 30
    least_rate: int = 200 << 20
    opening_s: float = 10.0
    write: str = "all"
    session_bytes: int = 0
    session_idle_s: float = 600.0
    revision_file: str = ""
    report_dir: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float":
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                    raise _refused(field.name, value, "a number of seconds above 0")
            elif field.type == "int":
                least = 0 if field.name in ("prefetch_bytes", "session_bytes") else 1
                if type(value) is not int or value < least:
                    raise _refused(field.name, value, f"a whole number of at least {least}")
            elif field.type == "bool" and type(value) is not bool:
                raise _refused(field.name, value, "true or false")
            elif field.type == "str" and not isinstance(value, str):
                raise _refused(field.name, value, "text")
        if self.medium not in MEDIA:
            raise _refused("medium", self.medium, " or ".join(MEDIA))
        if self.write not in WRITES:
            raise _refused("write", self.write, " or ".join(WRITES))
        host, _, port = self.metrics.rpartition(":")
        if self.metrics and not (host and port.isdigit()):
            raise _refused("metrics", self.metrics, "host:port of the master's metrics")

    @classmethod
    def of(cls, extra_config: Mapping[str, Any]) -> OffloadSettings:
        """From ``kv_connector_extra_config``; raises `SettingRefused` for what is missing, unknown or impossible."""
        given = extra_config.get(KEY)
        if not isinstance(given, Mapping) or not given.get("master"):
            raise SettingRefused(
                f"{KEY}={given!r}",
                "the tier needs to know where the store is",
                'a mapping with at least "master": "host:port"',
                f"Set it under kv_connector_extra_config.{KEY}",
            )
        parts: dict[str, Any] = {"address": StoreAddress, "identity": Identity, "options": Options}
        names = {part: {field.name for field in fields(kind)} for part, kind in parts.items()}
        own = {field.name for field in fields(cls)} - set(parts)
        known = own.union(*names.values())
        if unknown := sorted(set(given) - known):
            raise SettingRefused(
                f"{KEY} has {unknown}", "a misspelt setting would be left out", ", ".join(sorted(known)), "Correct it"
            )
        made = {
            part: kind(**{name: value for name, value in given.items() if name in names[part]})
            for part, kind in parts.items()
        }
        return cls(**made, **{name: value for name, value in given.items() if name in own})


def _refused(name: str, value: object, allowed: str) -> SettingRefused:
    return SettingRefused(f"{KEY}.{name}={value!r}", "the tier cannot work with it", allowed, "Correct the setting")
