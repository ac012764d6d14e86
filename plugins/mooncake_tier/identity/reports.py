"""What each worker says of its keys, as a file, so that `mooncake-tier doctor` can compare workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mooncake_tier import keys

__all__ = ["read_reports", "write_report"]


def write_report(folder: Path, worker: str, fields: Mapping[str, Any]) -> str:
    """Write ``<worker>.json`` and return the namespace of these fields of `NamespaceFields`; raises `KeyRefused`."""
    name = keys.namespace(**fields)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{worker}.json.part"
    part.write_text(json.dumps({**fields, "namespace": name}, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / f"{worker}.json")
    return name


def read_reports(paths: Iterable[Path]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Worker -> fields with the namespace, and file -> why it could not be read. A folder stands for its reports.

    A namespace that does not follow from the fields counts as unreadable.
    """
    found: dict[str, dict[str, Any]] = {}
    unreadable: dict[str, str] = {}
    for path in paths:
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            try:
                fields = json.loads(file.read_text(encoding="utf-8"))
                made = keys.namespace(**{name: value for name, value in fields.items() if name != "namespace"})
                if made != fields.get("namespace"):
                    raise ValueError(f"its fields give {made}, and it says {fields.get('namespace')}")
                found[str(file)] = fields
            except (OSError, ValueError, TypeError, AttributeError) as error:
                unreadable[str(file)] = " ".join(str(error).split())
    return found, unreadable
