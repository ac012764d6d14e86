"""The settings of the store connector, read from ``kv_connector_extra_config.mooncake_tier``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mooncake_tier.client.connection import StoreAddress
from mooncake_tier.errors import SettingRefused
from mooncake_tier.identity.deployment import Identity
from mooncake_tier.options import Options

__all__ = ["SECTION", "StoreSettings", "store_settings"]

SECTION = "mooncake_tier"

_MEDIA = ("CPU", "EXTERNAL")
_IDENTITY = tuple(field.name for field in fields(Identity))
_ADDRESS = tuple(field.name for field in fields(StoreAddress))
_OPTIONS = tuple(field.name for field in fields(Options) if field.name != "checksum")


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """address, identity, options: where the store is, what tells deployments apart, how long calls may take.

    metrics: ``host:port`` of the master's HTTP side, which lists keys; needed for events.
    events: whether vLLM's KV events tell of blocks in the store. poll_s: seconds between looks for evicted blocks.
    medium: what events call the store: CPU for one on this node, EXTERNAL for one of several nodes.
    save_decode: whether blocks of answers are stored, and not of prompts only.
    pinned_share: share of the cache's blocks that may wait to be stored, 0 to 1; beyond it, storing waits.
    report_dir: folder for this worker's report, which ``mooncake-tier doctor --report`` compares; empty for none.
    """

    address: StoreAddress
    identity: Identity
    options: Options
    metrics: str = ""
    events: bool = True
    poll_s: float = 5.0
    medium: str = "CPU"
    save_decode: bool = True
    pinned_share: float = 0.25
    report_dir: Path | None = None

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of the master's HTTP side."""
        host, _, port = self.metrics.rpartition(":")
        return host, int(port)


def store_settings(extra_config: Mapping[str, Any], checksum: str = "xxh3") -> StoreSettings:
    """The settings in a connector's ``kv_connector_extra_config``. Raises `SettingRefused`.

    checksum: ``none`` for caches that the CPU cannot read.
    """
    given = extra_config.get(SECTION)
    own = ("metrics", "events", "poll_s", "medium", "save_decode", "pinned_share", "report_dir")
    known = {*own, *_IDENTITY, *_ADDRESS, *_OPTIONS}
    if not isinstance(given, Mapping) or "master" not in given:
        raise _refused(f"{SECTION}={given!r}", "the store's address is missing", '{"master": "host:port", ...}')
    if unknown := sorted(map(str, set(given) - known)):
        raise _refused(f"{SECTION} has {unknown}", "it knows no such setting", ", ".join(sorted(known)))
    for name, kind in {"events": bool, "save_decode": bool, "metrics": str, "report_dir": str}.items():
        if name in given and type(given[name]) is not kind:
            raise _refused(f"{SECTION}.{name}={given[name]!r}", "it has another type", kind.__name__)
    for name, most in {"poll_s": 3600.0, "pinned_share": 1.0}.items():
        value = given.get(name, 0.25)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise _refused(f"{SECTION}.{name}={value!r}", "it is out of range", f"above 0, at most {most}")
    if given.get("medium", "CPU") not in _MEDIA:
        raise _refused(f"{SECTION}.medium={given['medium']!r}", "the router knows no such place", " or ".join(_MEDIA))
    metrics = given.get("metrics", "")
    if metrics and not (metrics.rpartition(":")[0] and metrics.rpartition(":")[2].isdigit()):
        raise _refused(f"{SECTION}.metrics={metrics!r}", "the port is missing", "host:port")
    report_dir = given.get("report_dir", "")
    return StoreSettings(
        address=StoreAddress(**_part(given, _ADDRESS)),
        identity=Identity(**_part(given, _IDENTITY)),
        options=Options(**_part(given, _OPTIONS), checksum=checksum),
        report_dir=Path(report_dir) if report_dir else None,
        **_part(given, tuple(name for name in own if name != "report_dir")),
    )


def _part(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _refused(seen: str, why: str, allowed: str) -> SettingRefused:
    return SettingRefused(seen, why, allowed, f"Correct kv_connector_extra_config.{SECTION}")
