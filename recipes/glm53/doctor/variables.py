"""Environment variables that decide what a worker does, and what is wrong with those that are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from glm53.doctor.finding import Diagnosis
from glm53.doctor.inventory import VLLM, Inventory
from glm53.doctor.repair import unset
from stockpatch.versions import OVERRIDE

__all__ = ["OTHERS", "VARIABLES", "Variable", "admitted", "examine", "told"]


@dataclass(frozen=True)
class Variable:
    """A plugin's variable. allowed: its values. least, most: the range of a number instead. default: where unset.

    shared: whether prefill and decode must have the same value.
    """

    default: str
    allowed: tuple[str, ...] = ()
    least: float = 0
    most: float = 0
    whole: bool = True
    shared: bool = True

    def takes(self, value: str) -> bool:
        """Whether the plugin accepts the value; empty counts as unset."""
        if not value or self.allowed:
            return not value or value in self.allowed
        try:
            number = int(value) if self.whole else float(value)
        except ValueError:
            return False
        return self.least <= number <= self.most

    @property
    def values(self) -> str:
        """The allowed values in words."""
        return ", ".join(self.allowed) or f"a {'whole ' * self.whole}number from {self.least:g} to {self.most:g}"


_TAGS = "DYNAMO_STRUCTURAL_TAGS"

VARIABLES = {
    "VLLM_CPU_DSA": Variable("0", ("0", "1")),
    "FLASHINFER_NVFP4_BACKEND": Variable(
        "auto", ("auto", "off", "cuda", "flashinfer", "triton", "gather"), shared=False
    ),
    "FLASHINFER_NVFP4_FOLD": Variable("on", ("on", "off")),
    "FLASHINFER_NVFP4_POLICY": Variable("search", ("rtn", "four_over_six", "search")),
    "FLASHINFER_NVFP4_PREFILL_MIB": Variable("144", least=0, most=1 << 20, shared=False),
    _TAGS: Variable("off", ("off", "report", "enforce")),
    f"{_TAGS}_READER": Variable("auto", ("auto", "ours", "dynamo-v1", "dynamo-v2", "vllm")),
    f"{_TAGS}_COMPILE_SECONDS": Variable("10", least=1e-6, most=600, whole=False, shared=False),
    f"{_TAGS}_CACHE": Variable("1024", least=1, most=1_000_000, shared=False),
    "RL_CAPTURE": Variable("off", ("off", "on"), shared=False),
}
"""Variables of the plugins; a test compares them with the plugins' own code."""

_PREFIXES = ("FLASHINFER_NVFP4_", _TAGS)

OTHERS: dict[str, bool] = {
    "DYN_PARSER_VERSION": True,
    "PYTHONHASHSEED": True,
    "UCX_TLS": True,
    "VLLM_KV_CACHE_LAYOUT": True,
    "VLLM_PLUGINS": True,
    "VLLM_TARGET_DEVICE": True,
    "FLASHINFER_DISABLE_VERSION_CHECK": True,
    OVERRIDE: True,
    "MOONCAKE_CONFIG_PATH": False,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": False,
}
"""Variables of stock that a report shows, and whether prefill and decode must have the same value."""


def told(environment: Mapping[str, str]) -> dict[str, str]:
    """What a report shows of an environment: these variables alone, so that no secret gets into it."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in VARIABLES or name in OTHERS or name.startswith(_PREFIXES)
    }


def admitted(environment: Mapping[str, str]) -> set[tuple[str, Version]]:
    """Releases that `OVERRIDE` lets through by name; raises ValueError for an entry that names none."""
    found = set()
    for entry in filter(None, (part.strip() for part in environment.get(OVERRIDE, "").split(","))):
        name, separator, version = entry.partition("==")
        if not separator or not name.strip():
            raise ValueError(f"{entry!r} is not NAME==VERSION")
        found.add((str(canonicalize_name(name.strip())), Version(version.strip())))
    return found


def examine(inventory: Inventory, environment: Mapping[str, str], rows: bool = False) -> Iterator[Diagnosis]:
    """Findings about variables that are set. rows: whether a recipe says that vllm_blhnc moves the KV."""
    for name, value in told(environment).items():
        known = VARIABLES.get(name)
        if known is None and name.startswith(_PREFIXES) and value:
            yield Diagnosis(
                "setting",
                name,
                f"{name}={value!r} is no variable of a plugin and would be ignored, or refused.",
                f"Use one of {', '.join(each for each in VARIABLES if each.startswith(_PREFIXES))}, or unset it.",
                (unset(name),),
            )
        elif known is not None and not known.takes(value):
            yield Diagnosis(
                "setting",
                name,
                f"{name}={value!r} has no meaning; the plugin refuses to start with it.",
                f"Allowed: {known.values}; unset is {known.default}.",
                (unset(name),),
            )
    yield from _checks(environment)
    vllm = inventory.first(*VLLM)
    bare = environment.get("VLLM_KV_CACHE_LAYOUT") == "BLHNC" and not rows
    if bare and vllm is not None and vllm.version < Version("0.33"):
        yield Diagnosis(
            "layout-bare",
            "VLLM_KV_CACHE_LAYOUT",
            f"VLLM_KV_CACHE_LAYOUT=BLHNC with vLLM {vllm.version}, whose own NixlConnector registers no whole rows: "
            "one descriptor a layer and block, more than with the default layout.",
            'Unset it, and use vllm_blhnc: "kv_connector_module_path": "vllm_blhnc.connector" asks for the layout.',
            (unset("VLLM_KV_CACHE_LAYOUT"),),
            level="note",
        )


def _checks(environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    name = "FLASHINFER_DISABLE_VERSION_CHECK"
    if environment.get(name, "") not in ("", "0"):
        yield Diagnosis(
            "version-check-off",
            name,
            f"{name}={environment[name]!r}: FlashInfer runs kernels of one release with the code of another.",
            "Unset it, and make the versions of its packages equal.",
            (unset(name),),
        )
    try:
        admitted(environment)
    except ValueError as error:
        yield Diagnosis(
            "setting",
            OVERRIDE,
            f"{OVERRIDE}={environment[OVERRIDE]!r} names no release ({error}); every plugin refuses to start with it.",
            f'Write NAME==VERSION entries, comma separated, as in {OVERRIDE}="vllm==0.34.0", or unset it.',
            (unset(OVERRIDE),),
        )
        return
    if environment.get(OVERRIDE, "").strip():
        yield Diagnosis(
            "version-check-off",
            OVERRIDE,
            f"{OVERRIDE}={environment[OVERRIDE]!r}: plugins run on releases that nobody has tested.",
            "Unset it, and install a release of a supported line.",
            (unset(OVERRIDE),),
        )
