"""Processes, read back from rendered files: from manifests, and from scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

__all__ = ["Command", "documents", "from_container", "from_manifests", "from_scripts", "option"]

#: The C parser reads the same language ten times as fast, where PyYAML was built with it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_KINDS = {
    "dynamo.vllm": "engine",
    "dynamo.frontend": "frontend",
    "dynamo_structural_tags.frontend": "frontend",
    "mooncake_tier.cli": "tier",
}


@dataclass(frozen=True)
class Command:
    """One process as a rendered file starts it.

    where: file, and name in it. kind: engine, frontend, tier-master, tier-store, tier (both in one) or other. host:
    processes with equal hosts share an address; empty where each has its own. image: None outside containers.
    """

    where: str
    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    host: str = ""
    image: str | None = None

    @property
    def role(self) -> str:
        """Of an engine: prefill, decode or aggregated."""
        return option(self, "--disaggregation-mode") or "aggregated"


def option(command: Command, name: str) -> str | None:
    """The value of an option, given as ``--name value`` or ``--name=value``; of several the last, as argparse does."""
    values = [value for flag, value in zip(command.argv, [*command.argv[1:], ""], strict=True) if flag == name]
    values += [word.partition("=")[2] for word in command.argv if word.startswith(f"{name}=")]
    return values[-1] if values else None


def documents(text: str) -> list[dict[str, Any]]:
    """The objects in a manifest."""
    return [one for one in yaml.load_all(text, _Loader) if isinstance(one, dict)]


def from_manifests(files: Mapping[str, str]) -> list[Command]:
    """Every container of every object, at any depth."""
    return [
        from_container(f"{name} {obj.get('kind')} {component}".strip(), container)
        for name, text in files.items()
        if name.endswith(".yaml")
        for obj in documents(text)
        for component, container in _containers(obj, "")
    ]


def _containers(value: Any, owner: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for item in value:
            yield from _containers(item, owner)
    elif isinstance(value, dict):
        name = value.get("name")
        owner = name if isinstance(name, str) and ("podTemplate" in value or "kind" in value) else owner
        for key, item in value.items():
            if key in ("containers", "initContainers") and isinstance(item, list):
                yield from ((owner, container) for container in item if isinstance(container, dict))
            else:
                yield from _containers(item, owner)


def from_container(where: str, container: Mapping[str, Any]) -> Command:
    """What a container starts. where: file and name of it, for findings."""
    argv = tuple(str(word) for word in [*container.get("command", []), *container.get("args", [])])
    env = {one["name"]: str(one.get("value", _source(one))) for one in container.get("env", [])}
    return Command(where, _kind(argv), argv, env, image=container.get("image"))


def _source(variable: Mapping[str, Any]) -> str:
    """What a variable is taken from, as text that no literal value is."""
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "secret")
    return f"from {path}"


def from_scripts(files: Mapping[str, str]) -> list[Command]:
    """Every script that becomes a process; a Slurm job tells their hosts and images."""
    placed: dict[str, tuple[str, str | None]] = {}
    if job := files.get("job.sbatch"):
        images = dict(re.findall(r"^(engine|frontend|store)=(.*)$", job, re.MULTILINE))
        for name, node, image in re.findall(r'^start (\S+) (\d+) \d+ "\$(\w+)"$', job, re.MULTILINE):
            placed[f"{name}.sh"] = (f"node {node}", "".join(shlex.split(images.get(image, ""))))
    return [
        _process(name, text, *placed.get(name, ("this machine", None)))
        for name, text in files.items()
        if name.endswith(".sh") and "\nexec " in text
    ]


def _process(name: str, text: str, host: str, image: str | None) -> Command:
    env, argv = {}, []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("export "):
            key, _, value = "".join(shlex.split(line.removeprefix("export "))).partition("=")
            env[key] = value
        elif line.startswith("exec "):
            argv = shlex.split(line.removeprefix("exec "))
    return Command(name, _kind(tuple(argv)), tuple(argv), env, host, image)


def _kind(argv: tuple[str, ...]) -> str:
    modules = [module for flag, module in pairwise(argv) if flag == "-m"]
    kind = next((_KINDS[module] for module in modules if module in _KINDS), "other")
    if kind == "tier" and "--master" in argv:
        return "tier-store"
    return "tier-master" if kind == "tier" and ("--pool", "0") in pairwise(argv) else kind
