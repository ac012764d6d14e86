"""API keys: a list for people, one client a line, and the file that Envoy reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glm53.deployment import DeploymentError, Finding
from glm53.edge.parts import API, RBAC, as_yaml

__all__ = ["envoy_keys"]

_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORTEST = 20


def envoy_keys(text: str) -> str:
    """The file for Envoy from lines ``CLIENT KEY``. Raises DeploymentError naming the lines, and never a key.

    Empty lines and those that begin with # are skipped. A client may have one key, a key one client; while a key is
    replaced, give the new one a client of its own, such as ann-2.
    """
    credentials: dict[str, str] = {}
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if wrong := _wrong(parts, credentials):
            findings.append(Finding("bad-key", f"line {number}", wrong, "Write CLIENT KEY."))
        else:
            credentials[parts[0]] = parts[1]
    if not findings and not credentials:
        findings.append(Finding("no-keys", "file", "it names no client, so nobody could enter.", "Write CLIENT KEY."))
    if findings:
        raise DeploymentError("keys", findings)
    return _file(credentials)


def _wrong(parts: list[str], known: dict[str, str]) -> str | None:
    if len(parts) != 2:
        return f"it has {len(parts)} words, not a client and its key."
    client, key = parts
    if not _CLIENT.fullmatch(client):
        return "the client's name has other signs than letters, digits, dots, dashes and underscores."
    if len(key) < _SHORTEST or not key.isascii() or not key.isprintable():
        return f"the key is shorter than {_SHORTEST} signs, or has signs that a header cannot carry."
    if client in known:
        return f"{client} has a key already."
    if key in known.values():
        return "another client has this key."
    return None


def _file(credentials: Mapping[str, str]) -> str:
    """client -> key as the file that Envoy reads; it holds the keys themselves.

    Envoy's RBAC filter, because its filter for API keys is outside its security promises in this release. The same
    rules once more as shadow rules, because those tell what follows which one matched: the name of the client.
    """
    rules = {
        "action": "ALLOW",
        "policies": {
            client: {
                "permissions": [{"any": True}],
                "principals": [{"header": {"name": "authorization", "string_match": {"exact": f"Bearer {key}"}}}],
            }
            for client, key in sorted(credentials.items())
        },
    }
    filter_ = {"@type": RBAC, "rules": rules, "shadow_rules": rules}
    resource = {"@type": f"{API}.config.core.v3.TypedExtensionConfig", "name": "keys", "typed_config": filter_}
    return as_yaml({"resources": [resource]})
