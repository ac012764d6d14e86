"""YAML for Kubernetes: sorted keys, no aliases, long arguments on one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

__all__ = ["documents"]


class _Plain(yaml.SafeDumper):
    """Writes equal parts out instead of referring to the first, and text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def documents(objects: Iterable[Mapping[str, Any]]) -> str:
    """One YAML document an object."""
    return yaml.dump_all(
        objects, Dumper=_Plain, sort_keys=True, explicit_start=True, width=1 << 20, default_flow_style=False
    )
