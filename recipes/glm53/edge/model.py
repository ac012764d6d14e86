"""The edge as one typed object, read from a YAML file; what cannot work is a finding before anything is rendered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from glm53.deployment import DeploymentError, Finding, read_yaml
from glm53.deployment.roles import Strict

__all__ = ["Edge", "Limits", "Member", "Tls", "load_edge"]

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
_Header = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
_Port = Annotated[int, Field(ge=1, le=65535)]


class Member(Strict):
    """One deployment behind the edge.

    host, port: of its frontends' service. ca: file with the authority of its certificate, which makes the way there
    TLS; None is plain HTTP, for a network nobody else is on. standby: gets requests only while no other member is
    healthy. drain: gets no new request, and finishes what it has.
    """

    name: _Name
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]+$")]
    port: _Port = 8000
    ca: Path | None = None
    standby: bool = False
    drain: bool = False


class Health(Strict):
    """A member is healthy while its API lists the model. Seconds between checks, and how many in a row decide."""

    interval_seconds: Annotated[float, Field(gt=0, le=60)] = 1.0
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    failures: Annotated[int, Field(ge=1)] = 2
    successes: Annotated[int, Field(ge=1)] = 2


class Limits(Strict):
    """What the edge refuses by itself.

    in_flight: requests under way at once, in all; more get 503. per_key_per_minute: requests of one key in a minute,
    and as many at once after a pause; more get 429. Each replica of the edge counts for itself. body_megabytes: the
    longest request, all of which is kept until its answer begins, so that it can be sent again.
    """

    in_flight: Annotated[int, Field(ge=1)] = 1024
    per_key_per_minute: Annotated[int, Field(ge=1)] | None = None
    body_megabytes: Annotated[int, Field(ge=1, le=1024)] = 45


class Tls(Strict):
    """Files with the certificate chain and its key; new ones are taken as soon as they are there."""

    certificate: Path
    key: Path


class Edge(Strict):
    """One address for clients.

    model: the name that members must list. sessions: headers that name a session, the first one present counts;
    requests of a session go to one member while that is healthy, because the session's KV cache is there. retries:
    further tries of a request of which nothing has been answered. keys: file that `glm53 edge keys` writes; None asks
    for no key. replicas, image, secrets: on Kubernetes; the secrets hold keys.yaml, and tls.crt with tls.key.
    """

    name: _Name
    model: Annotated[str, Field(min_length=1)]
    members: Annotated[tuple[Member, ...], Field(min_length=1)]
    listen: str = "127.0.0.1"
    port: _Port = 8443
    metrics_port: _Port = 9902
    admin_port: _Port = 9901
    sessions: tuple[_Header, ...] = ("x-dynamo-session-id", "x-session-id", "x-claude-code-session-id")
    retries: Annotated[int, Field(ge=0, le=8)] = 3
    health: Health = Health()
    limits: Limits = Limits()
    keys: Path | None = None
    tls: Tls | None = None
    replicas: Annotated[int, Field(ge=1, le=64)] = 2
    image: str = "envoyproxy/envoy:v1.40.0"
    keys_secret: _Name | None = None
    tls_secret: _Name | None = None

    def findings(self) -> Iterator[Finding]:
        """What no single field can see."""
        for name, count in Counter(member.name for member in self.members).items():
            if count > 1:
                yield Finding("member-twice", "members", f"{count} members are named {name}.", "Rename all but one.")
        for (host, port), count in Counter((member.host, member.port) for member in self.members).items():
            if count > 1:
                yield Finding(
                    "member-address",
                    "members",
                    f"{count} members are at {host}:{port}; one that fails would be tried again in its own place.",
                    "Give each member an address of its own.",
                )
        if all(member.standby for member in self.members):
            yield Finding("all-standby", "members", "every member is on standby.", "Leave standby out for one.")
        if all(member.drain for member in self.members):
            yield Finding("all-drained", "members", "no member takes requests.", "Leave drain out for one.")
        if self.limits.per_key_per_minute is not None and self.keys is None and self.keys_secret is None:
            yield Finding(
                "limit-without-keys",
                "limits.per_key_per_minute",
                "without keys nobody is told apart, and the limit would count nobody's requests.",
                "Set keys, or keys_secret on Kubernetes.",
            )
        for port, count in Counter((self.port, self.metrics_port, self.admin_port)).items():
            if count > 1:
                yield Finding("port-clash", "port", f"{port} is used {count} times.", "Choose three ports.")


def load_edge(path: Path) -> Edge:
    """Read an edge file. Raises DeploymentError with all findings; a missing file is one of them."""
    raw: Any = read_yaml(path)
    if not isinstance(raw, dict):
        raise DeploymentError(
            str(path), [Finding("not-a-mapping", "file", f"it holds {type(raw).__name__}.", "Start with 'name: ...'.")]
        )
    try:
        edge = Edge.model_validate(raw)
    except ValidationError as error:
        raise DeploymentError(str(path), [_finding(item) for item in error.errors()]) from error
    if found := list(edge.findings()):
        raise DeploymentError(str(path), found)
    return edge


_CODES: dict[str, tuple[Literal["unknown-key", "missing-key"], str, str]] = {
    "extra_forbidden": ("unknown-key", "this key does not exist.", "Remove it or correct its spelling."),
    "missing": ("missing-key", "this key is required.", "Add it."),
}


def _finding(item: Any) -> Finding:
    field = ".".join(str(part) for part in item["loc"]) or "file"
    if item["type"] in _CODES:
        code, message, fix = _CODES[item["type"]]
        return Finding(code, field, message, fix)
    return Finding("bad-value", field, f"{item['input']!r}: {item['msg']}.", "Correct the value.")
