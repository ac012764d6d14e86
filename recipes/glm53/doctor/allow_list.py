"""``VLLM_PLUGINS``, the list of entry points that vLLM may load: what is wrong with it, and how it is put right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from glm53.doctor.finding import Diagnosis
from glm53.doctor.inventory import Inventory
from glm53.doctor.repair import export, unset

__all__ = ["allowed", "correction", "examine"]


def allowed(environment: Mapping[str, str]) -> list[str] | None:
    """The list as vLLM reads it: split at commas, spaces kept; None where unset, which allows everything."""
    return environment["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in environment else None


def examine(inventory: Inventory, environment: Mapping[str, str], needed: Sequence[str]) -> Iterator[Diagnosis]:
    """Names in the list behind which there is nothing. needed: entry points that must be loaded."""
    names = _discovered(inventory)
    for name in allowed(environment) or ():
        if name and name not in names:
            near = _nearest(name, names)
            yield Diagnosis(
                "plugin-unknown",
                "VLLM_PLUGINS",
                f"VLLM_PLUGINS={environment['VLLM_PLUGINS']!r} names {name!r}, and discovered are "
                f"{', '.join(sorted(names)) or 'none'}; vLLM starts without a word.",
                f"Write {near!r}." if near else "Install what brings it, or take it out of the list.",
                (correction(inventory, environment, needed),),
            )


def correction(inventory: Inventory, environment: Mapping[str, str], needed: Sequence[str]) -> tuple[str, ...]:
    """The command that puts the list right: the nearest names that exist, and all that are needed."""
    names = _discovered(inventory)
    corrected = [_nearest(name, names) for name in allowed(environment) or ()]
    kept = list(dict.fromkeys(filter(None, [*corrected, *needed])))
    return export("VLLM_PLUGINS", ",".join(kept)) if kept else unset("VLLM_PLUGINS")


def _nearest(name: str, names: frozenset[str]) -> str:
    return next(iter(get_close_matches(name.strip(), sorted(names), 1, 0.85)), "")


def _discovered(inventory: Inventory) -> frozenset[str]:
    return frozenset(name for group, name in inventory.entries if group.startswith("vllm."))
