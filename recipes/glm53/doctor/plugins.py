"""What each plugin would do in an environment, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from packaging.version import Version

from glm53.doctor import allow_list
from glm53.doctor.finding import Diagnosis
from glm53.doctor.inventory import VLLM, Inventory, Package
from glm53.doctor.packages import BUNDLE, MOONCAKE, op_without_sources
from glm53.doctor.repair import install
from glm53.doctor.variables import VARIABLES, admitted
from stockpatch.find import find_register
from stockpatch.register import Patch, Register
from stockpatch.versions import Window

__all__ = ["PLUGINS", "Plugin", "Status", "examine", "statuses"]

State = Literal["on", "ready", "off", "cannot"]

_VLLM = Window(VLLM, ">=0.31,<0.34")
_GENERAL = "vllm.general_plugins"


@dataclass(frozen=True)
class Plugin:
    """One plugin of the bundle.

    does: what it does when it is on. windows: what it works on. optional: windows of what may be absent.
    entries: entry points that must be discovered. switch: variable that switches it on, with its values; without one
    a configuration does, as `how` says. patched: whether it has a register of patches.
    """

    name: str
    does: str
    how: str
    windows: tuple[Window, ...]
    optional: tuple[Window, ...] = ()
    entries: tuple[tuple[str, str], ...] = ()
    switch: tuple[str, tuple[str, ...]] | None = None
    patched: bool = True

    def asked(self, environment: Mapping[str, str]) -> bool:
        """Whether the environment switches it on."""
        return self.switch is not None and environment.get(self.switch[0]) in self.switch[1]


PLUGINS = (
    Plugin(
        "vllm_blhnc",
        "moves whole block rows over NIXL",
        '"kv_connector_module_path": "vllm_blhnc.connector" in --kv-transfer-config',
        (_VLLM, Window(("nixl",), ">=1.4,<1.6")),
    ),
    Plugin(
        "flashinfer_nvfp4",
        "writes and reads NVFP4 rows of 352 bytes",
        "--kv-cache-dtype nvfp4_ds_mla",
        (_VLLM,),
        entries=((_GENERAL, "flashinfer_nvfp4"), ("vllm_blhnc.peer_facts", "nvfp4_rows")),
        switch=("FLASHINFER_NVFP4_BACKEND", ("auto", "cuda", "flashinfer", "triton", "gather")),
    ),
    Plugin(
        "dynamo_structural_tags",
        "keeps tool calls inside what the parser reads back",
        "DYNAMO_STRUCTURAL_TAGS=enforce or report",
        (_VLLM,),
        optional=(Window(("ai-dynamo",), ">=1.6.1,<1.7"),),
        entries=((_GENERAL, "dynamo_structural_tags"), ("rl_capture.outcomes", "dynamo_structural_tags")),
        switch=("DYNAMO_STRUCTURAL_TAGS", ("enforce", "report")),
    ),
    Plugin(
        "mooncake_tier",
        "keeps KV blocks in DRAM, and runs the tier of a node",
        "mooncake-tier serve, and a connector of mooncake_tier in --kv-transfer-config",
        (Window(MOONCAKE, ">=0.3.13,<0.3.14"),),
        optional=(_VLLM,),
        entries=((_GENERAL, "mooncake_tier"),),
    ),
    Plugin(
        "rl_capture",
        "records served requests for training",
        "RL_CAPTURE=on",
        (_VLLM,),
        optional=(Window(("ai-dynamo",), ">=1.6.1,<1.7"),),
        entries=((_GENERAL, "rl_capture"),),
        switch=("RL_CAPTURE", ("on",)),
    ),
    Plugin(
        "vllm_cpu_dsa",
        "runs sparse attention on vLLM's CPU platform",
        "VLLM_CPU_DSA=1",
        (_VLLM,),
        entries=(("vllm.platform_plugins", "vllm_cpu_dsa"), (_GENERAL, "vllm_cpu_dsa")),
        switch=("VLLM_CPU_DSA", ("1",)),
    ),
)
"""A test compares windows and entry points with the plugins' own."""


@dataclass(frozen=True)
class Status:
    """state: "on" by the environment or recipe, "ready" to be switched on, "off" by its variable, or "cannot".

    patches: id -> "applies", or why it does not.
    """

    name: str
    does: str
    state: State
    reasons: tuple[str, ...]
    patches: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def statuses(
    inventory: Inventory, environment: Mapping[str, str], wanted: frozenset[str] = frozenset()
) -> list[Status]:
    """Every plugin. wanted: names of those that a recipe switches on."""
    found = []
    for plugin in PLUGINS:
        reasons = [*_why_not(plugin, inventory, environment)]
        on = plugin.name in wanted or plugin.asked(environment)
        off = plugin.switch is not None and environment.get(plugin.switch[0]) == "off"
        state: State = "cannot" if reasons else "off" if off else "on" if on else "ready"
        if state == "off" and plugin.switch is not None:
            reasons = [f"{plugin.switch[0]}=off"]
        if state == "ready":
            reasons = [f"switched on by {plugin.how}"]
        if plugin.name == "flashinfer_nvfp4" and (lacking := op_without_sources(inventory)):
            reasons.append(f"FlashInfer's own op lacks csrc/{lacking}: the plugin's kernel decodes")
        patches = {patch.id: _applies(patch, inventory, environment) for patch in _patches(plugin)}
        found.append(Status(plugin.name, plugin.does, state, tuple(reasons), patches))
    return found


def examine(
    inventory: Inventory, environment: Mapping[str, str], wanted: frozenset[str] = frozenset()
) -> Iterator[Diagnosis]:
    """Findings about plugins that are installed, named or switched on."""
    bundle = inventory.packages.get(BUNDLE)
    allowed = allow_list.allowed(environment)
    on = [plugin.name for plugin in PLUGINS if plugin.name in wanted or plugin.asked(environment)]
    loaded = [plugin.name for plugin in PLUGINS if plugin.name in on and plugin.entries]
    yield from allow_list.examine(inventory, environment, loaded)
    for plugin in PLUGINS:
        lost = [entry for entry in plugin.entries if entry not in inventory.entries]
        if bundle is not None and lost:
            yield Diagnosis(
                "plugin-hidden",
                plugin.name,
                f"{BUNDLE}=={bundle.version} is installed, and its entry point {' '.join(lost[0])} is not discovered.",
                "Install the bundle again, from its folder, and delete any *.egg-info of an old build there.",
                (install("."),),
            )
        elif plugin.name in loaded and allowed is not None and plugin.name not in allowed:
            yield Diagnosis(
                "plugin-not-allowed",
                "VLLM_PLUGINS",
                f"{plugin.name} is switched on, and VLLM_PLUGINS={environment['VLLM_PLUGINS']!r} keeps it out.",
                f"Add it to the list, or unset the list; it is switched on by {plugin.how}.",
                (allow_list.correction(inventory, environment, loaded),),
            )
        for window in plugin.windows if plugin.name in on else ():
            if why := _outside(window, inventory, environment):
                yield Diagnosis(
                    "plugin-version",
                    plugin.name,
                    f"{plugin.name} is switched on, and {why}.",
                    f"Install {window.distributions[0]}{window.specifier}, or switch the plugin off.",
                    (install(f"{window.distributions[0]}{window.specifier}"),),
                )
        if plugin.patched and isinstance(_register(plugin.name), str):
            yield Diagnosis(
                "plugin-broken",
                plugin.name,
                f"what it changes in vLLM is not known: {_register(plugin.name)}.",
                "Install the bundle again, from its folder; its files are incomplete, or of two releases.",
                (install("."),),
            )


def _why_not(plugin: Plugin, inventory: Inventory, environment: Mapping[str, str]) -> Iterator[str]:
    if BUNDLE not in inventory.packages:
        yield f"{BUNDLE} is not installed"
    elif lost := [entry for entry in plugin.entries if entry not in inventory.entries]:
        yield f"its entry point {' '.join(lost[0])} is not discovered"
    for window in plugin.windows:
        if why := _outside(window, inventory, environment):
            yield why
    for window in plugin.optional:
        if inventory.first(*window.distributions) and (why := _outside(window, inventory, environment)):
            yield why
    allowed = allow_list.allowed(environment)
    if allowed is not None and plugin.entries and plugin.name not in allowed:
        yield f"VLLM_PLUGINS={environment['VLLM_PLUGINS']!r} keeps it out"
    if plugin.switch is not None:
        value = environment.get(plugin.switch[0], "")
        if not VARIABLES[plugin.switch[0]].takes(value):
            yield f"{plugin.switch[0]}={value!r} has no meaning"


def _outside(window: Window, inventory: Inventory, environment: Mapping[str, str]) -> str:
    """Why the installed release is not one that the window admits, by range or by name; empty if it is."""
    package = inventory.first(*window.distributions)
    if package is None:
        return f"{window.distributions[0]} is not installed"
    if window.contains(package.version) or _by_name(package, environment):
        return ""
    return f"{package.name}=={package.version} is outside {window.specifier}"


def _by_name(package: Package, environment: Mapping[str, str]) -> bool:
    try:
        names = admitted(environment)
    except ValueError:  # a finding of its own
        return False
    exact = (package.name, package.version)
    return exact in names or (package.name, Version(package.version.public)) in names


def _patches(plugin: Plugin) -> tuple[Patch, ...]:
    register = _register(plugin.name) if plugin.patched else None
    return register.patches if isinstance(register, Register) else ()


def _register(name: str) -> Register | str:
    """A plugin's register, or why it cannot be read."""
    try:
        return find_register(name)
    except LookupError as error:
        return str(error)


def _applies(patch: Patch, inventory: Inventory, environment: Mapping[str, str]) -> str:
    # A release that is allowed by name gets the patches of the plugin, and none that is for certain releases only.
    why = _outside(patch.window, inventory, {} if patch.optional_outside else environment)
    if not why:
        return "applies"
    return f"not needed: {why}" if patch.optional_outside and "outside" in why else f"refused: {why}"
