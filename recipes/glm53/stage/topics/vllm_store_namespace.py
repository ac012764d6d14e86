"""vLLM: keys of the Mooncake store that tell deployments apart."""

from __future__ import annotations

import ast

from glm53.stage.edits import Argument, Body, Edit, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["STORE_NAMESPACE"]

_STORE = "distributed/kv_transfer/kv_connector/v1/mooncake/store"
_WORKER, _HERE = f"{_STORE}/worker.py", "plugins/mooncake_tier"
_PACKAGE = f"vllm.{_STORE}.namespace".replace("/", ".")


def _solved(tree: Tree) -> str | None:
    source = tree.source(_WORKER)
    for call in source.calls("MooncakeStoreWorker.__init__", "KeyMetadata"):
        for keyword in call.keywords:
            if keyword.arg == "model_name" and "split" not in ast.unparse(keyword.value):
                return f"{source.file}: line {keyword.value.lineno} names the model by {ast.unparse(keyword.value)}"
    return None


def _module(name: str, *edits: Edit, only: tuple[str, ...] = ()) -> Place:
    last = name.rpartition("/")[2]
    there = {"vllm_stock": "engine_facts", "row_facts": "row_settings"}.get(last, last)
    to = f"{{package}}/{_STORE}/namespace/{there}.py"
    return Place(f"{_HERE}/{name}.py", to, f"{_PACKAGE}.{there}", only=only, edits=edits)


STORE_NAMESPACE = Topic(
    id="store-namespace",
    project=PROJECTS["vllm"],
    title="[KV Connector] Mooncake store: keys that name what decides the bytes of a block",
    releases=">=0.31,<0.34",
    how="With key_namespace in kv_connector_extra_config, off by default, keys begin with a digest of everything that "
    "decides a block's bytes: checkpoint, revision and a fingerprint of the weights, cache dtype, layout, every cache "
    "and its place in the block, block size, parallel sizes, hash algorithm and seed, and vLLM's release. "
    'key_namespace is true, or {"model": ..., "revision": ..., "weights": ..., "adapter": ...} where the '
    "configuration does not tell them.",
    risks="None where it is not set: keys stay byte for byte what they are. With it, blocks that were stored without "
    "it are not found. It is for MLA models, whose caches are known by name, and refuses others, pipeline parallelism, "
    "unnamed LoRA adapters, and weights that are not on the machine and have no name.",
    near=f"{_STORE}/protocol.py",
    solved=_solved,
    edits=(
        Argument(
            file=_WORKER,
            scope="MooncakeStoreWorker.__init__",
            call="KeyMetadata",
            name="cache_prefix",
            code="namespaced({value}, vllm_config, kv_cache_config)",
        ),
        Insert(
            file=_WORKER,
            anchor="MooncakeStoreWorker",
            where="before",
            code='''\
            def namespaced(
                cache_prefix: str, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
            ) -> str:
                """The prefix, followed by a digest of what decides a block's bytes if asked for."""
                extra = vllm_config.kv_transfer_config.kv_connector_extra_config
                if not (chosen := extra.get("key_namespace")):
                    return cache_prefix
                known = Identity(**chosen) if isinstance(chosen, dict) else Identity()
                fields = namespace_fields(
                    vllm_config, kv_cache_config, way="store", identity=known
                )
                return cache_prefix + namespace(**fields)
            ''',
            blank=2,
        ),
        Import(file=_WORKER, code=f"from {_PACKAGE}.keys import (\n    namespace,\n)"),
        Import(file=_WORKER, code=f"from {_PACKAGE}.deployment import (\n    Identity,\n    namespace_fields,\n)"),
    ),
    places=(
        Place(f"{_HERE}/__init__.py", f"{{package}}/{_STORE}/namespace/__init__.py", _PACKAGE),
        _module("errors", only=("TierRefused", "KeyRefused")),
        _module("keys"),
        _module("identity/weights"),
        _module("identity/model_layers"),
        _module(
            "identity/row_facts",
            Body(
                file="",
                scope="row_facts",
                code="""\
                from vllm import envs

                told = ("VLLM_NVFP4_MLA_FOLD",)
                known = [name for name in told if name in envs.environment_variables]
                return {name: str(getattr(envs, name)) for name in known}
                """,
            ),
            only=("row_facts",),
        ),
        _module(
            "vllm_stock",
            Body(file="", scope="series", code='import vllm\n\nreturn ".".join(vllm.__version__.split(".")[:2])'),
            only=("series", "hash_seed"),
        ),
        _module("identity/deployment"),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_store_namespace.py",
            "tests/v1/kv_connector/unit/test_mooncake_store_namespace.py",
        ),
    ),
    evidence=(
        Evidence(
            "each single field of a deployment changes the namespace, and no two sets of fields have the same encoding",
            "pytest tests/mooncake_tier/test_tier_keys.py tests/mooncake_tier/test_tier_namespace.py",
        ),
    ),
    said=Said(
        "A key of the store names the last part of the model's path, ranks and the block's hash. Two deployments whose "
        "checkpoint folders have one name, or that differ in the cache's dtype, its layout or the weights, read each "
        "other's blocks without an error and answer wrongly.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/"
        "worker.py",
        "The store's keys tell checkpoints, weights, cache dtypes and layouts apart.",
    ),
    renamed={
        "A DRAM tier for KV blocks on stock Mooncake: keys that cannot collide, objects that prove themselves, calls "
        "that end.\n\nInstalled but idle: nothing happens until a client is connected or ``mooncake-tier serve`` is "
        "run. Each folder imports\nof the others only those before it: `client`, `identity`, `events`, `node`, "
        "`offloading`, `store`.\n": "What a deployment's blocks have in common, as text for the keys of a store.",
        "The errors of this plugin, always": "The errors of keys, always",
        "kv_connector_extra_config.mooncake_tier": "kv_connector_extra_config.key_namespace",
        "How a worker's rows are encoded, as installed packages tell it: the facts that prefill and decode must share, "
        "too.\n\nA package tells a fact by an entry point of the group ``vllm_blhnc.peer_facts``: a class without "
        "arguments that has\n``setting``, the text of what a user must make equal, and ``value(vllm_config)``, the "
        "fact of this worker once its model\nis loaded, or None where it does not matter. flashinfer_nvfp4 tells the "
        "fingerprint of its rows in this way.\n": "Settings that change what a worker's rows mean.",
        "; raises `KeyRefused` for one that cannot be told.\n\n    Only a process that has loaded the model can tell "
        "them.\n    ": ".",
        "What differs between the supported vLLM releases, in one place; importing it loads no vLLM.": "What vLLM "
        "tells of itself; importing it loads nothing of it.",
        "``0.31``, ``0.32`` or ``0.33``; raises `stockpatch.versions.UnsupportedVersion` for any other release.": "The "
        "release without its last part, such as ``0.33``.",
        "such as flashinfer_nvfp4's; empty": "empty",
        "cache after cache of a chunk in host memory (`mooncake_tier.tier`)": "cache after cache of a chunk in host "
        "memory",
        "without this tier": "without key_namespace",
        "`mooncake_tier.identity.": "`",
        "`mooncake_tier.": "`",
    },
)
