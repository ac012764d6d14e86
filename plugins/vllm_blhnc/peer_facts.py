"""Facts that other installed packages add to the handshake: what else prefill and decode must have in common.

An entry point of the group ``vllm_blhnc.peer_facts`` gives a fact its name, and names a class that satisfies
`PeerFact` and is built without arguments. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

__all__ = ["GROUP", "KEY", "PeerFact", "PeerFactError", "differences", "told"]

GROUP = "vllm_blhnc.peer_facts"
KEY = "peer_facts"
"""Under which a worker's handshake carries them: name -> {"value": ..., "setting": ...}."""


class PeerFactError(RuntimeError):
    """A fact of an installed package cannot be told, so no peer could be known to agree. Nothing was served."""


@runtime_checkable
class PeerFact(Protocol):
    """One fact. A plain class attribute serves for the property."""

    @property
    def setting(self) -> str:
        """What a user must make equal on both sides, to complete "make ... equal"."""
        ...

    def value(self, vllm_config: Any) -> str | None:
        """The fact of this worker, once its model is loaded; None where it does not matter.

        None agrees with a peer on which the package is not installed.
        """
        ...


def told(vllm_config: Any) -> dict[str, dict[str, str]]:
    """What a worker tells its peers: each fact that matters. Raises `PeerFactError` for one that cannot be told."""
    found: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for entry in entry_points(group=GROUP):
        if entry.name in seen:
            raise _refused(entry, "another package declares a fact of this name", "one package for each name")
        seen.add(entry.name)
        value, setting = _read(entry, vllm_config)
        if value is not None:
            found[entry.name] = {"value": value, "setting": setting}
    return found


def differences(mine: Mapping[str, Any], peer: Mapping[str, Any]) -> list[str]:
    """One sentence per fact in which two handshakes, each as one mapping, differ."""
    here, there = mine.get(KEY, {}), peer.get(KEY, {})
    found = []
    for name in sorted({*here, *there}):
        values = [side.get(name, {}).get("value") for side in (here, there)]
        if values[0] != values[1]:
            setting = (here.get(name) or there[name])["setting"]
            found.append(f"{name} is {values[0]!r} here and {values[1]!r} at the peer: make {setting} equal")
    return found


def _read(entry: EntryPoint, vllm_config: Any) -> tuple[str | None, str]:
    try:
        fact = entry.load()()
    except Exception as error:
        raise _refused(entry, f"it cannot be loaded ({error!r})", "a class built without arguments") from error
    if not isinstance(fact, PeerFact) or not isinstance(fact.setting, str):
        raise _refused(entry, "it lacks parts of vllm_blhnc.peer_facts.PeerFact", "setting (text), value")
    try:
        value = fact.value(vllm_config)
    except Exception as error:
        raise _refused(
            entry, f"it cannot tell its value ({error})", "a value, or None where it does not matter"
        ) from error
    if value is not None and not isinstance(value, str):
        raise _refused(entry, f"its value is {value!r}", "text, or None where it does not matter")
    return value, fact.setting


def _refused(entry: EntryPoint, why: str, allowed: str) -> PeerFactError:
    whose = f" of {entry.dist.name}" if entry.dist else ""
    return PeerFactError(
        f"{GROUP} {entry.name!r} = {entry.value!r}{whose}: {why}, so peers that differ in it would be read from; "
        f"allowed: {allowed}. Correct what it names, or uninstall the package."
    )
