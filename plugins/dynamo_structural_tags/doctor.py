"""Finds what keeps tool calls from coming out right in a deployment: findings with what was seen, needed, and the fix.

Reads metadata, command lines and environments only; no stock package is imported. Asking a live endpoint is `probe`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from dynamo_structural_tags.processes import Process
from dynamo_structural_tags.settings import PREFIX, Mode, Settings
from dynamo_structural_tags.stock import DYNAMO, VLLM
from stockpatch.versions import NotInstalled, UnsupportedVersion, Window, installed

__all__ = ["CODES", "Finding", "diagnose", "status"]

Level = Literal["ok", "note", "warning", "error"]

NAME = "dynamo_structural_tags"
GROUP = "vllm.general_plugins"

#: Codes of findings, for docs/structural_tags.md.
CODES: dict[str, str] = {
    "version": "a stock package that nobody tested this plugin with; there it only reports",
    "version-pair": "a Dynamo and a vLLM that do not belong together",
    "entry-point": "vLLM does not see the plugin: it is not installed, or a stale installation hides it",
    "allow-list": "`VLLM_PLUGINS` lists plugins and this one is not among them",
    "setting": "an environment variable of this plugin that is not usable",
    "mode": "the worker's hook is off, or only reports",
    "parser-route": "the v1 parser of Dynamo, which misreads some texts, or two versions on two sides",
    "parser-glm45": "Dynamo's parser `glm45` for tool calls, for which there is no tag and no call is read",
    "parser": "a tool parser other than GLM's, or none",
    "reasoning": "who ends the reasoning, and whether the parser behind it can cope",
    "tags-off": "structural tags are switched off",
    "endpoint": "the endpoint does not answer, or refuses the request",
    "tag": "whether the endpoint's answer to a forced call is held by a tag",
    "metrics": "what the plugin's counters say",
}


@dataclass(frozen=True)
class Finding:
    """What the doctor found: `seen`, what is `needed`, and the `fix` if they differ."""

    code: str
    level: Level
    seen: str
    needed: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.level:8}{self.code}: {self.seen}"]
        parts += [f"{'':10}needed: {self.needed}"] if self.needed else []
        parts += [f"{'':10}fix: {self.fix}"] if self.fix else []
        return "\n".join(parts)


def status(findings: Iterable[Finding]) -> int:
    """The exit status: 1 if there is a warning or an error, 2 if an endpoint could not be asked, else 0."""
    found = list(findings)
    if any(finding.code == "endpoint" and finding.level == "error" for finding in found):
        return 2
    return int(any(finding.level in ("warning", "error") for finding in found))


def diagnose(processes: list[Process], environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Everything about this installation, and about each process; about the environment if there is no process."""
    found = [*_versions(), *_entry_point()]
    workers = [process for process in processes if process.role != "frontend"]
    if not processes:
        found.append(
            Finding("parser", "note", "no serving process of this user runs here; looking at this environment")
        )
        found += [*_allow_list("environment", environment), *_mode("environment", environment)]
    for process in workers:
        found += [*_allow_list(process.name, process.environment), *_mode(process.name, process.environment)]
    for process in processes:
        found += {"frontend": _frontend, "worker": _worker, "serve": _serve}[process.role](process)
    return [*found, *_routes(processes)]


def _versions() -> Iterator[Finding]:
    for window in (VLLM, DYNAMO):
        name = window.distributions[0]
        needed = f"{name}{window.specifier} (tested: {', '.join(window.tested)})"
        try:
            version = window.require()
        except NotInstalled:
            yield Finding("version", "note", f"{name} is not installed in this environment", needed)
        except UnsupportedVersion as error:
            fix = f"install a tested release; until then the plugin reports and changes nothing ({error})"
            yield Finding("version", "warning", f"{name} is outside the tested releases", needed, fix)
        else:
            yield Finding("version", "ok", f"{name}=={version}", needed)
    yield from _pair()


def _pair() -> Iterator[Finding]:
    try:
        dynamo, vllm = installed(*DYNAMO.distributions), installed(*VLLM.distributions)
    except UnsupportedVersion:
        return  # told above
    if dynamo and vllm and not Window(VLLM.distributions, "==0.31.*").contains(vllm[1]):
        seen = f"{dynamo[0]}=={dynamo[1]} beside {vllm[0]}=={vllm[1]}"
        fix = "install vLLM 0.31.0, or serve with vllm serve"
        yield Finding(
            "version-pair", "error", seen, "vLLM 0.31.x: dynamo.vllm imports names that later ones moved", fix
        )


def _entry_point() -> Iterator[Finding]:
    values = [entry.value for entry in metadata.entry_points(group=GROUP) if entry.name == NAME]
    if values:
        yield Finding("entry-point", "ok", f"{GROUP}: {NAME} = {values[0]}")
    else:
        fix = "pip install the package again, and delete any *.egg-info folder in the working directory"
        yield Finding("entry-point", "error", f"no entry point {NAME}", f"one in the group {GROUP}", fix)


def _allow_list(name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    value = environment.get("VLLM_PLUGINS")
    if value is not None and NAME not in value.split(","):  # vLLM strips no spaces
        others = [item for item in map(str.strip, value.split(",")) if item and item != NAME]
        fix = f"VLLM_PLUGINS={','.join([*others, NAME])}"
        yield Finding("allow-list", "error", f"{name}: VLLM_PLUGINS={value!r}", f"{NAME} in the list", fix)


def _mode(name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        mode = Settings.read(environment).mode
    except ValueError as error:
        yield Finding("setting", "error", f"{name}: {error}", "a value from the settings table", "correct or unset it")
        return
    if mode is Mode.ENFORCE:
        yield Finding("mode", "ok", f"{name}: {PREFIX}={mode}")
    else:
        needed = f"{PREFIX}=enforce, for tags that the parser reads back"
        yield Finding("mode", "warning", f"{name}: {PREFIX}={mode}", needed, f"set {PREFIX}=enforce and restart")


def _frontend(process: Process) -> Iterator[Finding]:
    if process.module == "dynamo_structural_tags.frontend":
        yield Finding("parser-route", "ok", f"{process.name}: this plugin's chat engine reads the calls")
        return
    processor = process.option("--dyn-chat-processor", "DYN_CHAT_PROCESSOR") or "dynamo"
    if processor != "dynamo":
        needed = "Dynamo's own chat processor, or this plugin's frontend"
        fix = "leave --dyn-chat-processor out, or run python -m dynamo_structural_tags.frontend"
        seen = f"{process.name}: --dyn-chat-processor {processor}, whose parser drops undeclared calls"
        yield Finding("parser-route", "warning", seen, needed, fix)


def _worker(process: Process) -> Iterator[Finding]:
    parser = process.option("--dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER")
    needed = "--dyn-tool-call-parser glm47"
    if parser == "glm45":
        seen = f"{process.name}: --dyn-tool-call-parser glm45: calls come out as text, finish reason stop"
        yield Finding("parser-glm45", "error", seen, needed, f"use {needed}; glm45 is right for reasoning only")
    elif parser != "glm47":
        yield Finding("parser", "warning", f"{process.name}: --dyn-tool-call-parser {parser}", needed, f"use {needed}")
    else:
        yield Finding("parser", "ok", f"{process.name}: --dyn-tool-call-parser glm47")
    tag = process.option("--dyn-structural-tag", "DYN_STRUCTURAL_TAG") or ""
    if tag.strip().lower() in ("false", "0", "off", "no"):
        fix = "leave --dyn-structural-tag and DYN_STRUCTURAL_TAG out"
        yield Finding("tags-off", "error", f"{process.name}: --dyn-structural-tag {tag}", "tags, Dynamo's default", fix)
    yield from _reasoning(process)


def _enforces(process: Process) -> bool:
    try:
        return Settings.read(process.environment).mode is Mode.ENFORCE
    except ValueError:
        return False  # told by `_mode`


def _reasoning(process: Process) -> Iterator[Finding]:
    dynamo = process.option("--dyn-reasoning-parser", "DYN_REASONING_PARSER")
    if dynamo is None:
        needed = "--dyn-reasoning-parser glm45: without it the reasoning is content"
        yield Finding("reasoning", "warning", f"{process.name}: no --dyn-reasoning-parser", needed, "add it")
    if process.option("--reasoning-parser") is None or _enforces(process):
        yield Finding("reasoning", "ok", f"{process.name}: the tag owns the reasoning, up to </think>")
    elif process.environment.get("DYN_PARSER_VERSION") == "2":
        yield Finding("reasoning", "ok", f"{process.name}: the engine owns the reasoning, and the v2 parser copes")
    else:
        seen = f"{process.name}: the engine owns the reasoning; the v1 parser loses a call before </think>"
        fix = f"set {PREFIX}=enforce, or DYN_PARSER_VERSION=2 on frontend and worker, or leave --reasoning-parser out"
        yield Finding("reasoning", "warning", seen, "the v2 parser, or the tag as owner", fix)


def _serve(process: Process) -> Iterator[Finding]:
    parser = process.option("--tool-call-parser")
    fix = "use --enable-auto-tool-choice --tool-call-parser glm47_safe"
    if parser == "glm47_safe":
        yield Finding("parser", "ok", f"{process.name}: --tool-call-parser glm47_safe")
    elif parser in ("glm47", "glm45"):
        seen = f"{process.name}: --tool-call-parser {parser}, which drops undeclared calls and cuts values"
        yield Finding("parser", "warning", seen, "--tool-call-parser glm47_safe", fix)
    else:
        yield Finding("parser", "warning", f"{process.name}: --tool-call-parser {parser}", "glm47_safe", fix)
    if process.option("--reasoning-parser") is None:
        seen = f"{process.name}: no --reasoning-parser: the reasoning is content"
        yield Finding("reasoning", "warning", seen, "--reasoning-parser glm45", "add it")
    elif _enforces(process):
        yield Finding("reasoning", "ok", f"{process.name}: the tag owns the reasoning, up to </think>")
    else:
        yield Finding("reasoning", "ok", f"{process.name}: the engine owns the reasoning")
    if (
        process.environment.get("VLLM_ENFORCE_STRICT_TOOL_CALLING") in ("0", "false", "False")
        and parser != "glm47_safe"
    ):
        seen = f"{process.name}: VLLM_ENFORCE_STRICT_TOOL_CALLING=0"
        yield Finding("tags-off", "error", seen, "tags", "unset VLLM_ENFORCE_STRICT_TOOL_CALLING")


def _routes(processes: list[Process]) -> Iterator[Finding]:
    """The version of Dynamo's parser on each side; this plugin's own frontend needs none."""
    sides = [p for p in processes if p.role != "serve"]
    if not sides or any(process.module == "dynamo_structural_tags.frontend" for process in sides):
        return
    versions = {process.name: process.environment.get("DYN_PARSER_VERSION") or "auto" for process in sides}
    seen = ", ".join(f"{name}: DYN_PARSER_VERSION={version}" for name, version in versions.items())
    needed, fix = "DYN_PARSER_VERSION=2 on both sides", "set DYN_PARSER_VERSION=2 for frontend and workers"
    if set(versions.values()) == {"2"}:
        yield Finding("parser-route", "ok", seen)
    elif "2" in versions.values():
        yield Finding("parser-route", "error", f"{seen}: the two sides disagree", needed, fix)
    else:
        yield Finding(
            "parser-route", "warning", f"{seen}: the v1 parser, which cuts <think> out of values", needed, fix
        )
