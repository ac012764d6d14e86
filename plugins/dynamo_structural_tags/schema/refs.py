"""References inside one document: JSON pointers, `#`, anchors and ids. Nothing is ever fetched."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from .verdicts import LIMITS

__all__ = ["References"]


class References:
    """Finds what a `$ref` points to."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._names: dict[str, Any] | None = None

    def find(self, uri: str) -> tuple[bool, Any]:
        """Whether the document holds the target, and the target."""
        base, _, fragment = uri.partition("#")
        if base and base != (self.root.get("$id") if isinstance(self.root, dict) else None):
            names = self._named()
            if base not in names or fragment:
                return False, None
            return True, names[base]
        if not fragment:
            return True, self.root
        if not fragment.startswith("/"):
            names = self._named()
            return ("#" + fragment) in names, names.get("#" + fragment)
        target = self.root
        for step in unquote(fragment)[1:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and len(key) < 10 and int(key) < len(target):
                target = target[int(key)]
            else:
                return False, None
        return True, target

    def _named(self) -> dict[str, Any]:
        """Schemas by anchor and by id, breadth first, as far as the limits go."""
        if self._names is None:
            self._names = {}
            queue: list[Any] = [self.root]
            for seen, schema in enumerate(queue):
                if seen > 10 * LIMITS.nodes:
                    break
                if isinstance(schema, dict):
                    for key, prefix in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", ""), ("id", "")):
                        if isinstance(schema.get(key), str):
                            self._names.setdefault(prefix + schema[key], schema)
                    queue += schema.values()
                elif isinstance(schema, list):
                    queue += schema
        return self._names
