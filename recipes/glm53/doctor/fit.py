"""Whether a host fits its role in a recipe: releases, plugins, GPUs, fabric, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glm53.checks import check_model_folder
from glm53.doctor.finding import Diagnosis
from glm53.doctor.host import Host
from glm53.doctor.inventory import VLLM, Inventory
from glm53.doctor.needs import Needs
from glm53.doctor.packages import BUNDLE, MOONCAKE
from glm53.doctor.plugins import PLUGINS
from glm53.doctor.repair import install, unset
from glm53.model import ModelError

__all__ = ["examine"]

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_MIB = 1 << 20
#: Bytes of vLLM's queues in /dev/shm, ten chunks each: one a group of tensor-parallel workers, and one from each
#: worker (`MultiprocExecutor`; VLLM_MQ_MAX_CHUNK_BYTES_MB, and the default of `MessageQueue`). One worker has none.
_BROADCAST, _ANSWERS = 10 * 16 * _MIB, 10 * 24 * _MIB
#: Of a worker on a CPU without its KV cache, as measured on the local stack.
_CPU_WORKER = 2_300_000_000


def examine(needs: Needs, inventory: Inventory, environment: Mapping[str, str], host: Host) -> Iterator[Diagnosis]:
    """Findings about this host. environment: as it was found, before the recipe's is laid over it."""
    yield from _releases(needs, inventory)
    yield from _plugins(needs, inventory)
    for name, value in needs.environment.items():
        if environment.get(name, value) != value:
            yield Diagnosis(
                "recipe-setting",
                name,
                f"the environment has {name}={environment[name]!r}, and the recipe sets {value!r}.",
                "Unset it here, or change the recipe, so that both hosts get it.",
                (unset(name),),
            )
    layout, wanted = environment.get("VLLM_KV_CACHE_LAYOUT"), needs.deployment.kv_transfer.layout
    if layout and layout != wanted and needs.worker:
        yield Diagnosis(
            "recipe-setting",
            "VLLM_KV_CACHE_LAYOUT",
            f"the environment has VLLM_KV_CACHE_LAYOUT={layout!r}, and the recipe kv_transfer.layout={wanted!r}.",
            "Unset it here: the recipe's connector asks vLLM for the layout.",
            (unset("VLLM_KV_CACHE_LAYOUT"),),
        )
    machine = _MACHINES[needs.deployment.machine.architecture]
    if host.machine != machine and needs.worker:
        yield Diagnosis(
            "architecture",
            "machine",
            f"this host is {host.machine}, and {needs.deployment.hardware} is {machine}, as its images are.",
            "Choose another host, or the recipe's hardware.",
        )
    yield from _gpus(needs, host)
    yield from _fabric(needs, host)
    yield from _memory(needs, host)
    yield from _model(needs)


def _releases(needs: Needs, inventory: Inventory) -> Iterator[Diagnosis]:
    release = needs.deployment.versions
    wanted: list[tuple[tuple[str, ...], str]] = [(("ai-dynamo",), needs.deployment.release)]
    if needs.worker:
        wanted += [(VLLM, release.vllm), (("nixl",), release.nixl)]
    if needs.tiered:
        own = "cuda13" if needs.deployment.machine.gpus else "non-cuda"  # what recipes install where there is none
        wanted += [((f"mooncake-transfer-engine-{own}", *MOONCAKE), release.mooncake)]
    for names, version in wanted:
        package = inventory.first(*names)
        if package is None or package.version.public != version:
            name = package.name if package else names[0]
            yield Diagnosis(
                "recipe-release",
                name,
                f"{package.version if package else 'none'} is installed, and release {needs.deployment.release} "
                f"of the recipe goes with {version}.",
                f"Install {name}=={version}, or use the image of the release.",
                (install(f"{name}=={version}"),),
            )


def _plugins(needs: Needs, inventory: Inventory) -> Iterator[Diagnosis]:
    bundle = inventory.packages.get(BUNDLE)
    for plugin in PLUGINS:
        lost = [entry for entry in plugin.entries if entry not in inventory.entries]
        if plugin.name in needs.plugins and (bundle is None or lost):
            seen = f"{BUNDLE} is not installed" if bundle is None else f"{' '.join(lost[0])} is not discovered"
            yield Diagnosis(
                "recipe-plugin",
                plugin.name,
                f"the recipe uses {plugin.name}, and {seen}.",
                "Install the bundle into this environment, from its folder; it moves no other pin.",
                (install("."),),
            )


def _gpus(needs: Needs, host: Host) -> Iterator[Diagnosis]:
    machine, name = needs.deployment.machine, needs.deployment.hardware
    if not needs.gpus or (host.gpu_devices and host.gpu_error):
        return
    if len(host.gpus) < needs.gpus:
        yield Diagnosis(
            "gpu-count",
            "gpus",
            f"{len(host.gpus)} GPUs are seen, and a group of {needs.role} takes {needs.gpus} of a node.",
            "Give the container all GPUs, or make the group smaller: roles."
            f"{needs.role}.tensor_parallel, .data_parallel.",
            (("nvidia-smi", "--list-gpus"),),
        )
    for gpu in {(one.name, one.capability): one for one in host.gpus}.values():
        if gpu.capability != machine.capability:
            yield Diagnosis(
                "gpu-kind",
                gpu.name,
                f"its compute capability is {_dotted(gpu.capability)}, and that of {name} is "
                f"{_dotted(machine.capability)}: other kernels, other cache dtypes.",
                "Choose the recipe of this hardware.",
            )
        elif gpu.memory_bytes < 0.95 * machine.gpu_bytes:
            yield Diagnosis(
                "gpu-memory",
                gpu.name,
                f"it has {gpu.memory_bytes / 1e9:.0f} GB, and {name} has {machine.gpu_bytes / 1e9:.0f} GB, for "
                "which the recipe was planned.",
                "Use whole GPUs of that hardware, or plan again: glm53 plan kv.",
            )


def _fabric(needs: Needs, host: Host) -> Iterator[Diagnosis]:
    deployment, tier = needs.deployment, needs.deployment.tier
    over_rdma = bool(needs.gpus and deployment.cluster.rdma and deployment.disaggregated)
    over_rdma |= needs.tiered and tier is not None and tier.protocol == "rdma"
    if over_rdma and not host.ports:
        yield Diagnosis(
            "rdma-missing",
            "/sys/class/infiniband",
            f"{needs.role} moves KV over RDMA, and the host has no device.",
            "Load the driver, and give the container its devices (cluster.rdma).",
        )
    if over_rdma and host.locked >= 0:
        yield Diagnosis(
            "memlock",
            "ulimit -l",
            f"{host.locked} bytes may be locked, and RDMA locks every registered buffer.",
            "Raise the limit, or give the container IPC_LOCK.",
            (("ulimit", "-l", "unlimited"),),
        )
    if needs.gpus and deployment.machine.nvlink_nodes > 1 and deployment.cluster.compute_domain and not host.channels:
        yield Diagnosis(
            "nvlink-channel",
            "/dev/nvidia-caps-imex-channels",
            "no IMEX channel is there, so NVLink reaches no other node.",
            "Let the pod claim a channel of a ComputeDomain, or start nvidia-imex on all nodes.",
            (("systemctl", "status", "nvidia-imex"),),
        )


def _memory(needs: Needs, host: Host) -> Iterator[Diagnosis]:
    deployment, needed, parts = needs.deployment, 0, ""
    parallel = needs.worker.tensor_parallel if needs.worker else 1
    engines = max(1, needs.gpus // parallel)
    queues = engines * (_BROADCAST + parallel * _ANSWERS) if parallel > 1 else 0
    if host.shm < queues:
        yield Diagnosis(
            "shm-small",
            "/dev/shm",
            f"it has {host.shm / _MIB:.0f} MiB, and vLLM's queues take {queues / _MIB:.0f} MiB "
            f"({engines} engines of {parallel} workers); a worker would end with a bus error.",
            "Enlarge it: --shm-size of the container, or a memory volume of the pod.",
            (("mount", "-o", f"remount,size={2 * queues}", "/dev/shm"),),
        )
    if needs.tiered and deployment.tier is not None:
        buffered = 0 if deployment.machine.gpus else engines
        needed += int(deployment.tier.memory) + int(deployment.tier.buffer) * buffered
        parts = "tier.memory" + (f" and {buffered} buffers" if buffered else "")
    if needs.worker and not deployment.machine.gpus:
        groups = sum(count for _, _, count in deployment.served())
        needed += groups * (int(deployment.engine.kv_cache) + _CPU_WORKER)
        parts = f"{groups} workers"
    if host.memory < needed:
        yield Diagnosis(
            "memory-small",
            "MemTotal",
            f"the host has {host.memory / 1e9:.1f} GB, and {parts} take {needed / 1e9:.1f} GB.",
            "Lower them in the recipe, or choose another host.",
        )


def _model(needs: Needs) -> Iterator[Diagnosis]:
    model = needs.deployment.model
    if needs.worker is None or "local" not in needs.deployment.targets or model.path is None or model.make:
        return
    try:
        check_model_folder(model.folder)
    except ModelError as error:
        yield Diagnosis("recipe-model", "model.path", f"{error}", "Correct the path.")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
