"""How a worker's rows are encoded, as installed packages tell it: the facts that prefill and decode must share, too.

A package tells a fact by an entry point of the group ``vllm_blhnc.peer_facts``: a class without arguments that has
``setting``, the text of what a user must make equal, and ``value(vllm_config)``, the fact of this worker once its model
is loaded, or None where it does not matter. flashinfer_nvfp4 tells the fingerprint of its rows in this way.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from mooncake_tier.errors import KeyRefused

__all__ = ["GROUP", "row_facts"]

GROUP = "vllm_blhnc.peer_facts"


def row_facts(vllm_config: Any) -> dict[str, str]:
    """Name -> value of every fact that matters here; raises `KeyRefused` for one that cannot be told.

    Only a process that has loaded the model can tell them.
    """
    found: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        try:
            value = entry.load()().value(vllm_config)
        except Exception as error:
            raise _refused(entry.name, entry.value, f"it cannot be told ({error})") from error
        if value is not None and (not isinstance(value, str) or not value):
            raise _refused(entry.name, entry.value, f"its value is {value!r}")
        if entry.name in found:
            raise _refused(entry.name, entry.value, "two packages tell it")
        if value is not None:
            found[entry.name] = value
    return found


def _refused(name: str, where: str, what: str) -> KeyRefused:
    return KeyRefused(
        f"{GROUP} {name!r} = {where!r}",
        f"{what}, so rows that differ in it could share a key",
        "one text for each fact, or None where it does not matter",
        "Correct what it names, or uninstall the package",
    )
