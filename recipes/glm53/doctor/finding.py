"""What the doctor finds, as data; and every code that a finding may have."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from glm53.deployment import Finding

__all__ = ["CODES", "Diagnosis", "Level", "script", "wrong"]

Level = Literal["error", "note"]

#: Code -> what it means: the rows of the table in docs/doctor.md.
CODES = {
    "line-none": "no vLLM is installed: plugins of the engine have nothing to work on",
    "line-unknown": "vLLM is none of the supported lines",
    "line-untested": "a release of a supported line that the tests do not run on",
    "two-vllm": "two distributions that install the package `vllm`",
    "metadata-unreadable": "a folder of metadata without a name or a version",
    "metadata-twice": "two folders of metadata for one distribution; the first hides the other's entry points",
    "dynamo-pins": "Dynamo's extra `vllm` pins another vLLM or NIXL than the installed one",
    "nixl-floor": "vLLM refuses a NIXL that is this old",
    "pin-conflict": "an installed package is outside what another one's metadata asks for",
    "nixl-two": "both CUDA variants of NIXL; an error where one has another version than `nixl` or the other",
    "nixl-variant": "`nixl` without the variant that it would load",
    "mooncake-two": "two Mooncake wheels, which overwrite each other's files",
    "flashinfer-versions": "FlashInfer, its cubins and its compiled kernels are not of one release",
    "kernel-sources": "FlashInfer's NVFP4 op without the sources that it is compiled from; an error where it is chosen",
    "version-check-off": "an environment variable that switches a version check off",
    "plugin-hidden": "the bundle is installed, and an entry point of a plugin is not discovered",
    "plugin-unknown": "`VLLM_PLUGINS` names what is not discovered",
    "plugin-not-allowed": "a plugin is switched on, and `VLLM_PLUGINS` keeps it out",
    "plugin-version": "a plugin is switched on, and a release that it works on is not the installed one",
    "plugin-broken": "a plugin's register of patches cannot be read",
    "setting": "an environment variable of a plugin with a value, or a name, that it does not have",
    "layout-bare": "`VLLM_KV_CACHE_LAYOUT=BLHNC` on a vLLM that by itself registers no whole rows",
    "gpu-unreadable": "a GPU's device is there, and nvidia-smi does not answer",
    "rdma-down": "RDMA devices are there, and no port is active",
    "recipe-release": "an installed release is not the one that the recipe's release pins",
    "recipe-plugin": "the recipe uses a plugin that is not installed, or not discovered",
    "recipe-setting": "the environment contradicts the recipe",
    "recipe-model": "the model's folder is missing or not complete",
    "architecture": "the host's processor is not that of the recipe's hardware",
    "gpu-count": "fewer GPUs than the role needs on a node",
    "gpu-kind": "GPUs of another compute capability than the recipe's hardware",
    "gpu-memory": "GPUs with less memory than the recipe's hardware",
    "nvlink-channel": "no IMEX channel, so no memory of another node over NVLink",
    "rdma-missing": "KV moves over RDMA, and the host has no device",
    "memlock": "the limit on locked memory, where RDMA locks every buffer",
    "shm-small": "/dev/shm is too small for the queues between vLLM's processes",
    "memory-small": "less memory than the recipe takes on this host",
    "pair-version": "a package of another version on the other host",
    "pair-plugin": "a plugin that is discovered on one host only",
    "pair-setting": "an environment variable with another value on the other host",
    "pair-recipe": "a value that prefill and decode must share, from two recipes that differ",
    "pair-recipe-absent": "one report was made with a recipe and the other without",
    "pair-python": "another Python or processor: a note, bytes of KV are the same",
}


@dataclass(frozen=True)
class Diagnosis(Finding):
    """A finding about a host.

    field: the package, variable or device. commands: what would cure it, as argument lists; never run here.
    level: "error" keeps the host from serving, or from serving what it is said to; "note" only tells.
    """

    commands: tuple[tuple[str, ...], ...] = ()
    level: Level = "error"

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"code={self.code!r} is not in CODES, so no page explains it; add it there")

    def __str__(self) -> str:
        return ("note: " if self.level == "note" else "") + super().__str__()


def wrong(findings: Iterable[Diagnosis]) -> bool:
    """Whether any finding is more than a note."""
    return any(finding.level == "error" for finding in findings)


def script(findings: Iterable[Diagnosis]) -> str:
    """The commands of all findings as shell text, each once, under a comment that says what they are for."""
    lines: list[str] = []
    for finding in findings:
        commands = [shlex.join(command) for command in finding.commands]
        if fresh := [command for command in commands if command not in lines]:
            about = f"# {finding.code}: {finding.field}".replace("\n", " ").replace("\r", " ")
            lines += [about, *fresh]
    return "".join(f"{line}\n" for line in lines)
