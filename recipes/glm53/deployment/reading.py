"""From a YAML file to a deployment, or to the list of everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from glm53.deployment.findings import DeploymentError, Finding
from glm53.deployment.model import Deployment
from glm53.deployment.parts import Engine, KvTransfer, Model, Tools
from glm53.deployment.roles import ROLES

__all__ = ["load", "parse", "read_yaml"]

#: Key -> section, of every value that all roles share.
_SHARED = {
    key: name
    for name, section in (("engine", Engine), ("kv_transfer", KvTransfer), ("tools", Tools), ("model", Model))
    for key in section.model_fields
}


def load(path: Path, pins: Path | None = None) -> Deployment:
    """Read a deployment file, and a file of pins on top of it.

    pins: keys as in the deployment, only `model.revision` and `images.digests`.
    Raises `DeploymentError` with all findings; a missing file is one of them.
    """
    raw = read_yaml(path)
    if pins is not None:
        raw = _pinned(raw, read_yaml(pins, f"--pins {pins}"), str(pins))
    return parse(raw, str(path))


def read_yaml(path: Path, field: str = "file") -> Any:
    """The plain data in a YAML file; raises `DeploymentError` if it cannot be read. field: what findings call it."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _NoDuplicates)
    except OSError as error:
        raise DeploymentError(
            str(path), [Finding("unreadable", field, f"{error.strerror or error}.", "Name an existing YAML file.")]
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DeploymentError(
            str(path), [Finding("not-yaml", field, f"it is not YAML: {error}.", "Correct the syntax.")]
        ) from error


def parse(raw: Any, source: str = "deployment") -> Deployment:
    """Check plain data as `load` does."""
    if not isinstance(raw, dict):
        held = "it is empty" if raw is None else f"it holds a {type(raw).__name__}, and no keys"
        raise DeploymentError(source, [Finding("not-a-mapping", "file", f"{held}.", "Start with 'name: ...'.")])
    try:
        deployment = Deployment.model_validate(raw)
    except ValidationError as error:
        raise DeploymentError(source, [_finding(item) for item in error.errors()]) from error
    if found := deployment.findings():
        raise DeploymentError(source, found)
    return deployment


class _NoDuplicates(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML's own loader silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.YAMLError(f"the key {key!r} is there twice, line {node.start_mark.line + 1} and below")
        return super().construct_mapping(node, deep)


def _pinned(raw: Any, pins: Any, source: str) -> Any:
    given = pins if isinstance(pins, dict) else {f"--pins {source}": pins}
    allowed = {"model": {"revision"}, "images": {"digests"}}
    wrong = [
        f"{section}.{key}" if isinstance(keys, dict) else section
        for section, keys in given.items()
        for key in (keys if isinstance(keys, dict) else [""])
        if key not in allowed.get(section, set())
    ]
    if wrong:
        allowed_keys = "A file of pins has model.revision and images.digests only; keep the rest in the recipe."
        raise DeploymentError(source, [Finding("not-a-pin", key, "this is no pin.", allowed_keys) for key in wrong])
    if not isinstance(raw, dict):
        return raw
    merged = dict(raw)
    for section, keys in given.items():
        before = raw.get(section, {})
        if not isinstance(before, dict):
            continue  # a finding of its own
        merged[section] = before | {key: _joined(before.get(key), value) for key, value in keys.items()}
    return merged


def _joined(before: Any, value: Any) -> Any:
    return before | value if isinstance(before, dict) and isinstance(value, dict) else value


def _finding(item: Any) -> Finding:
    loc = item["loc"]
    field = ".".join(str(part) for part in loc) or "file"
    if item["type"] == "extra_forbidden":
        if len(loc) == 3 and loc[0] == "roles" and loc[1] in ROLES and loc[2] in _SHARED:
            home = f"{_SHARED[loc[2]]}.{loc[2]}"
            return Finding(
                "agreed-value",
                field,
                "prefill and decode must agree on this value, and here it would be one role's.",
                f"Set {home}, which holds for every role.",
            )
        return Finding("unknown-key", field, "this key does not exist.", "Remove it or correct its spelling.")
    if item["type"] == "missing":
        return Finding("missing-key", field, "this key is required.", "Add it.")
    return Finding("bad-value", field, f"{item['input']!r}: {item['msg']}.", "Correct the value.")
