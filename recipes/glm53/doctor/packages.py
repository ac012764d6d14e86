"""Packages that do not belong together: rules over an environment's metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from glm53.doctor.finding import Diagnosis
from glm53.doctor.inventory import VLLM, Inventory, Package
from glm53.doctor.lines import LINES
from glm53.doctor.repair import install, uninstall

__all__ = ["BUNDLE", "MOONCAKE", "OP_SOURCES", "STACK", "examine", "op_without_sources"]

BUNDLE = "glm53-blackwell"
#: All of them install the package `mooncake`.
MOONCAKE = ("mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda")
_NIXL = ("nixl-cu12", "nixl-cu13")
_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
#: Whose requirements are compared with what is installed.
STACK = (
    *("ai-dynamo", "ai-dynamo-runtime", *VLLM, "nixl", *_NIXL, *_FLASHINFER, *MOONCAKE),
    *("xgrammar", "torch", BUNDLE),
)
#: vLLM since this release refuses a NIXL below the second: its ``check_nixl_version`` (connector's base_worker.py).
_NIXL_FLOOR = (Version("0.33"), Version("1.5.0"))
#: What FlashInfer's NVFP4 decode op is compiled from, in its folder ``csrc``.
OP_SOURCES = (*("nvfp4_sparse_mla_decode.cu", "nvfp4_sparse_mla_decode_jit_binding.cu", "nvfp4_sparse_mla_decode.cuh"),)


def examine(inventory: Inventory, environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Findings about packages that cannot work, or cannot work together."""
    yield from _metadata(inventory)
    yield from _pins(inventory)
    yield from _nixl(inventory)
    yield from _mooncake(inventory)
    yield from _flashinfer(inventory)
    yield from _sources(inventory, environment)


def _metadata(inventory: Inventory) -> Iterator[Diagnosis]:
    for place, why in sorted(inventory.unreadable.items()):
        if str(canonicalize_name(Path(place).name)).startswith(tuple(f"{name}-" for name in STACK)):
            yield Diagnosis(
                "metadata-unreadable",
                Path(place).name,
                f"{place}: {why}, so no version check can see what is installed.",
                "Delete the folder, then install that package again.",
                (("rm", "-r", place),),
            )
    for other in inventory.hidden:
        first = inventory.packages[other.name]
        differs = first.version != other.version or first.entries != other.entries
        if other.name not in STACK or not differs:
            continue
        lost = ", ".join(sorted(f"{group}: {name}" for group, name in other.entries - first.entries))
        place = str(getattr(first.distribution, "_path", first.folder))
        yield Diagnosis(
            "metadata-twice",
            other.name,
            f"{place} ({first.version}) is found before {other.folder} ({other.version})"
            + (f" and hides its entry points {lost}." if lost else "; Python believes the first."),
            "Delete the stale one: an *.egg-info of an old build, or an older copy earlier on the path.",
            (("rm", "-r", place),) if lost else (),
        )


def _pins(inventory: Inventory) -> Iterator[Diagnosis]:
    for name in STACK:
        package = inventory.packages.get(name)
        if package is None:
            continue
        for requirement, asked in _requirements(package):
            theirs = inventory.packages.get(str(canonicalize_name(requirement.name)))
            if theirs is None or requirement.specifier.contains(theirs.version, prereleases=True):
                continue
            if asked == "vllm" and name == "ai-dynamo":
                yield _triangle(package, requirement, theirs)
            elif not asked:
                yield Diagnosis(
                    "pin-conflict",
                    theirs.name,
                    f"{theirs.version} is installed, and {name}=={package.version} asks for {requirement.specifier}.",
                    f"Install {theirs.name}{requirement.specifier}, or the {name} that was made for {theirs.version}.",
                    (install(f"{theirs.name}{requirement.specifier}"),),
                )
    vllm, nixl = inventory.first(*VLLM), inventory.first("nixl", *_NIXL)
    since, floor = _NIXL_FLOOR
    if vllm and nixl and vllm.version >= since and nixl.version < floor:
        yield Diagnosis(
            "nixl-floor",
            nixl.name,
            f"{nixl.version} is installed, and vLLM {vllm.version} ends at its start with a NIXL below {floor}.",
            f"Install the one of its line, {LINES[-1].nixl}.",
            (install(*_like(inventory, LINES[-1].nixl)),),
        )


def _requirements(package: Package) -> Iterator[tuple[Requirement, str]]:
    """The requirements that count on this interpreter, each with the extra that asks for it ("" without)."""
    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # of other tools; pip would have refused to install it
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement, ""
        elif package.name == "ai-dynamo" and marker.evaluate({"extra": "vllm"}):
            yield requirement, "vllm"


def _triangle(dynamo: Package, requirement: Requirement, theirs: Package) -> Diagnosis:
    """Dynamo was released for one vLLM and one NIXL, and metadata names them under its extra only."""
    line = next((line for line in LINES if line.dynamo == dynamo.version.public), None)
    known = f"vLLM {line.vllm} with NIXL {line.nixl}" if line else f"what its metadata pins ({requirement})"
    return Diagnosis(
        "dynamo-pins",
        theirs.name,
        f"{theirs.version} is installed, and ai-dynamo=={dynamo.version} pins {requirement}. A newer vLLM and "
        f"this Dynamo cannot be had together: vLLM since {_NIXL_FLOOR[0]} refuses the NIXL that Dynamo pins.",
        f"With Dynamo install {known}; without, serve with `vllm serve` and uninstall ai-dynamo.",
        (install(f"{theirs.name}{requirement.specifier}"),),
    )


def _like(inventory: Inventory, version: str) -> list[str]:
    """NIXL's distributions that are installed, at one version."""
    return [f"{name}=={version}" for name in ("nixl", *_NIXL) if name in inventory.packages]


def _nixl(inventory: Inventory) -> Iterator[Diagnosis]:
    nixl = inventory.packages.get("nixl")
    variants = [inventory.packages[name] for name in _NIXL if name in inventory.packages]
    seen = " and ".join(f"{one.name}=={one.version}" for one in variants)
    torch = inventory.packages.get("torch")
    cuda = (torch.version.local or "") if torch else ""
    wanted = f"nixl-{cuda[:4]}" if cuda.startswith("cu") else ""
    if nixl and not variants:
        yield Diagnosis(
            "nixl-variant",
            "nixl",
            f"nixl=={nixl.version} holds no code; it loads nixl-cu12 or nixl-cu13, and neither is installed.",
            "Install the variant of torch's CUDA release.",
            (install(f"{wanted or 'nixl-cu13'}=={nixl.version}"),),
        )
    elif nixl and wanted in _NIXL and wanted not in inventory.packages:
        yield Diagnosis(
            "nixl-variant",
            wanted,
            f"{seen} is installed, and with torch {torch.version if torch else ''} `nixl` loads {wanted}.",
            f"Install {wanted}=={nixl.version}.",
            (install(f"{wanted}=={nixl.version}"),),
        )
    if len(variants) < 2:
        return
    versions = {one.version for one in (*variants, *([nixl] if nixl else []))}
    if len(versions) > 1:
        right = nixl.version if nixl else max(versions)
        yield Diagnosis(
            "nixl-two",
            "nixl",
            f"{seen} are installed" + (f" beside nixl=={nixl.version}" if nixl else "") + ": which runs is decided by "
            "the CUDA release that `nixl` detects, so peers can run different releases.",
            "Give all of them one version, or uninstall the variant of the other CUDA release.",
            (install(*_like(inventory, str(right))),),
        )
    else:
        unused = next((one.name for one in variants if wanted in _NIXL and one.name != wanted), None)
        yield Diagnosis(
            "nixl-two",
            "nixl",
            f"{seen} are installed, in two packages; `nixl` loads the one of the CUDA release that it detects.",
            "Nothing has to be done; uninstalling the unused one saves its disk.",
            (uninstall(unused),) if unused else (),
            level="note",
        )


def _mooncake(inventory: Inventory) -> Iterator[Diagnosis]:
    found = [inventory.packages[name] for name in MOONCAKE if name in inventory.packages]
    if len(found) > 1:
        seen = " and ".join(f"{one.name}=={one.version}" for one in found)
        cuda = next((one for one in found if not one.name.endswith("-non-cuda")), found[0])
        yield Diagnosis(
            "mooncake-two",
            "mooncake",
            f"{seen} are installed, and both install the package `mooncake`: files of one, metadata of two.",
            "Uninstall all, then install one: with CUDA on GPUs, -non-cuda elsewhere. `mooncake-tier doctor` looks at "
            "its libraries.",
            (uninstall(*(one.name for one in found)), install(f"{cuda.name}=={cuda.version}")),
        )


def _flashinfer(inventory: Inventory) -> Iterator[Diagnosis]:
    found = [inventory.packages[name] for name in _FLASHINFER if name in inventory.packages]
    core = inventory.packages.get(_FLASHINFER[0])
    for one in found:
        if core is not None and one.version.public != core.version.public:
            yield Diagnosis(
                "flashinfer-versions",
                one.name,
                f"{one.version} is installed beside flashinfer-python=={core.version}, which refuses kernels of "
                "another release when it is imported.",
                f"Install {one.name}=={core.version.public}; do not switch the check off.",
                (install(f"{one.name}=={core.version.public}"),),
            )
    if found and core is None:
        seen = ", ".join(f"{one.name}=={one.version}" for one in found)
        yield Diagnosis(
            "flashinfer-versions",
            "flashinfer-python",
            f"{seen} without flashinfer-python, which would use it.",
            "Install it at the same version.",
            (install(f"flashinfer-python=={found[0].version.public}"),),
        )


def op_without_sources(inventory: Inventory) -> str:
    """The first file that FlashInfer's NVFP4 op lacks; empty if it has all, or there is no such op."""
    core = inventory.packages.get(_FLASHINFER[0])
    folder = core.folder / "flashinfer" / "experimental" / "nvfp4_sparse_mla_decode" if core else None
    if folder is None or not folder.is_dir():
        return ""
    return next((name for name in OP_SOURCES if not (folder / "csrc" / name).is_file()), "")


def _sources(inventory: Inventory, environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    if lacking := op_without_sources(inventory):
        chosen = environment.get("FLASHINFER_NVFP4_BACKEND") == "flashinfer"
        core = inventory.packages[_FLASHINFER[0]]
        yield Diagnosis(
            "kernel-sources",
            "flashinfer-python",
            f"{core.version} has nvfp4_sparse_mla_decode without csrc/{lacking}, so it cannot be compiled"
            + ("; FLASHINFER_NVFP4_BACKEND=flashinfer chooses it." if chosen else "."),
            "Decode with the kernel of flashinfer_nvfp4, FLASHINFER_NVFP4_BACKEND=cuda; auto chooses it by itself.",
            (("export", "FLASHINFER_NVFP4_BACKEND=cuda"),) if chosen else (),
            level="error" if chosen else "note",
        )
