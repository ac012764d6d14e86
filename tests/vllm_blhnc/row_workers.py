"""Real connectors of one prefill or decode process without an engine, for models the CPU has no attention for.

vLLM's CPU attention for GQA does not accept BLHNC, so no engine here can serve a draft model in rows. What
moves KV does not need one: below are vLLM's own planner, one backing buffer as vLLM allocates it, the connector
of either side with its NIXL agent, and its handshake over a socket. Attention backends, which stock asks for
names and block sizes only, are those a GPU deployment has.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import vllm_process

__all__ = ["Deployment", "Side", "serve"]

MEMORY = 10 << 20  # bytes of caches on one side
TOKENS = 64  # in a block


@dataclass(frozen=True)
class Deployment:
    """What is configured on one side.

    drafts: GQA layers of 2 heads of 64 bfloat16 values. window: sliding window of the drafts, in tokens.
    drafts_apart: their pages get memory of their own. speculative: (method, draft model, tokens) or None.
    layout: what vLLM has resolved. blhnc: settings of the plugin. stock: connector without the plugin.
    context_parallel: decode context-parallel size that the configuration says. cache_dtype: the same.
    engine: further arguments of the engine. facts: replaced in the handshake. dense: MLA without
    indexers, whose backend takes blocks of any multiple of 16 tokens.
    """

    model: str
    drafts: int = 0
    window: int | None = None
    drafts_apart: bool = False
    speculative: tuple[str, str, int] | None = None
    layout: str = "BLHNC"
    connector: str = "NixlConnector"
    stock: bool = False
    block_size: int = TOKENS
    ranks: int = 1
    context_parallel: int = 1
    mla_layers: int = 3
    cache_dtype: str | None = None
    revision: str | None = None
    dense: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    blhnc: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Side:
    """One worker with its caches, and the scheduler half that answers handshakes."""

    def __init__(self, deployment: Deployment, role: str) -> None:
        from vllm.config import set_current_vllm_config

        self.config = _configuration(deployment, role)
        with set_current_vllm_config(self.config):
            self._start(deployment, role)

    def _start(self, deployment: Deployment, role: str) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.v1.kv_cache_layout import KVCacheLayout

        self.specs = _specs(deployment)
        self.plan = _plan(self.config, self.specs)
        _join_layers(self.config, self.specs, deployment.dense)
        self.kv = _allocate(self.plan, KVCacheLayout[deployment.layout], apart=deployment.drafts_apart)
        made = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, self.plan)
        self.worker: Any = made.connector_worker
        if deployment.ranks > 1:  # One rank of several; its peers would be processes like this one.
            self.worker.world_size = self.worker.transfer_tp_size = deployment.ranks
        made.register_kv_caches(self.kv)
        if deployment.facts:
            self.worker.xfer_handshake_metadata.blhnc |= deployment.facts
        if role == "kv_producer":  # Answers on the port of this process, so there can be one.
            self._scheduler = KVConnectorFactory.create_connector(self.config, KVConnectorRole.SCHEDULER, self.plan)
            self._scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): made.get_handshake_metadata()})

    @property
    def address(self) -> dict[str, Any]:
        import vllm.envs as envs

        return {
            "remote_host": "127.0.0.1",
            "remote_port": envs.VLLM_NIXL_SIDE_CHANNEL_PORT,
            "remote_engine_id": self.worker.engine_id,
            "tp_size": self.worker.world_size,
        }

    @property
    def registered(self) -> dict[str, Any]:
        """Regions as (length, stride) in bytes, and the memory's row: bytes of pages, bytes between blocks."""
        stride = next(iter(self.kv.values()))
        return {
            "regions": list(zip(self.worker.block_len_per_layer, self.worker.block_stride_per_layer, strict=True)),
            "row": stride.stride(0) * stride.element_size(),
            "pages": {name: spec.page_size_bytes for name, spec in self.specs.items()},
        }

    def members(self) -> dict[str, tuple[int, int]]:
        """Layer -> offset in the row and length in bytes, as peers are told."""
        return self.worker._own_metadata()["packed_member_layouts"]

    def fill(self, seed: int) -> None:
        """Random bytes everywhere."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        for storage in {
            view.untyped_storage().data_ptr(): view.untyped_storage() for view in self.kv.values()
        }.values():
            memory = torch.empty(0, dtype=torch.uint8).set_(storage)
            memory.copy_(torch.randint(0, 256, memory.shape, dtype=torch.uint8, generator=generator))

    def digests(self, blocks: list[int]) -> dict[str, list[str]]:
        """Of each layer, a digest of its page in each of the blocks, read through the view that attention uses."""
        import torch

        return {
            name: [
                hashlib.sha256(view[block].contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
                for block in blocks
            ]
            for name, view in self.kv.items()
        }

    def read(self, address: dict[str, Any], blocks: list[int], remote_blocks: list[int]) -> dict[str, Any]:
        """Pull blocks as an engine's step would; NIXL's own count of what moved, or why nothing did."""
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

        telemetry: list[tuple[int, int]] = []
        agent = self.worker.nixl_wrapper
        reading = type(agent).get_xfer_telemetry

        def recorded(handle: Any) -> Any:
            found = reading(agent, handle)
            telemetry.append((found.descCount, found.totalBytes))
            return found

        agent.get_xfer_telemetry = recorded
        step = NixlConnectorMetadata()
        step.add_new_req_to_recv(
            "request", (blocks,), address | {"remote_block_ids": (remote_blocks,), "remote_request_id": "request"}
        )
        deadline = time.monotonic() + 60
        done: set[str] = set()
        while not done and time.monotonic() < deadline:
            self.worker.start_load_kv(step)
            step = NixlConnectorMetadata()
            done = self.worker.get_finished()[1]
            time.sleep(0.01)
        errors = self.worker.get_block_ids_with_load_errors()
        return {"done": bool(done), "failed_blocks": sorted(errors), "telemetry": telemetry}

    def meet(self, address: dict[str, Any]) -> str:
        """Shake hands with a peer; why not, or nothing."""
        try:
            self.worker._nixl_handshake(
                address["remote_host"], address["remote_port"], address["tp_size"], address["remote_engine_id"]
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    @staticmethod
    def others(deployments: dict[str, Deployment], address: dict[str, Any]) -> dict[str, str]:
        """What each of these decode sides says when it starts or, having started, meets the peer."""
        found = {}
        for name, deployment in deployments.items():
            try:
                side = Side(deployment, "kv_consumer")
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
                continue
            found[name] = side.meet(address)
            side.worker.shutdown()
        return found


def serve(commands: Connection, log: str, environment: dict[str, str], deployment: Deployment, role: str) -> None:
    """Be one side: answer with its address and regions, then each ``(method, arguments)`` with its result."""
    vllm_process._settle(log, environment)
    try:
        side = Side(deployment, role)
        commands.send(("value", {"address": side.address} | side.registered))
    except BaseException as error:
        commands.send(("error", f"{type(error).__name__}: {error}"))
        return
    while True:
        try:
            method, arguments = commands.recv()
        except EOFError:
            return
        commands.send(("value", getattr(side, method)(*arguments)))


def _configuration(deployment: Deployment, role: str) -> Any:
    from vllm import EngineArgs

    module = {} if deployment.stock else {"kv_connector_module_path": "vllm_blhnc.connector"}
    arguments: dict[str, Any] = {
        "model": deployment.model,
        "dtype": "float32",
        "block_size": TOKENS,
        "max_model_len": 1024,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "kv_transfer_config": {
            "kv_connector": deployment.connector,
            "kv_role": role,
            "kv_connector_extra_config": {"blhnc": {"progress_delay_us": 2000} | deployment.blhnc},
        }
        | module,
    }
    config = EngineArgs(**arguments | deployment.engine).create_engine_config()
    config.cache_config.kv_cache_layout = deployment.layout
    if deployment.speculative:
        method, draft, tokens = deployment.speculative
        object.__setattr__(config, "speculative_config", _speculative(method, draft, tokens, deployment))
    config.parallel_config.decode_context_parallel_size = deployment.context_parallel
    config.cache_config.block_size = deployment.block_size
    if deployment.cache_dtype:
        config.cache_config.cache_dtype = deployment.cache_dtype
    _initialize_ranks(config)
    return config


def _speculative(method: str, draft: str, tokens: int, deployment: Deployment) -> Any:
    """The part of a speculative configuration that the connector reads."""
    return SimpleNamespace(
        method=method,
        num_speculative_tokens=tokens,
        kv_cache_dtype=None,
        parallel_drafting=method == "dflash",
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: False,
        draft_model_config=SimpleNamespace(
            model=draft,
            revision=deployment.revision,
            code_revision=None,
            use_mla=not deployment.drafts,
            hf_config=SimpleNamespace(),
            get_total_num_kv_heads=lambda: 2,
            get_total_num_hidden_layers=lambda: deployment.drafts or 1,
        ),
    )


def _initialize_ranks(config: Any) -> None:
    import tempfile

    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


def _specs(deployment: Deployment) -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    size = deployment.block_size
    specs: dict[str, Any] = {}
    for layer in range(deployment.mla_layers):
        name = f"model.layers.{layer}.self_attn"
        specs[f"{name}.attn"] = MLAAttentionSpec(
            block_size=size, num_kv_heads=1, head_size=576, dtype=torch.uint8, block_stride_alignment=32 * 576
        )
        if layer < 2 and not deployment.dense:
            specs[f"{name}.indexer.k_cache"] = MLAAttentionSpec(
                block_size=size, num_kv_heads=1, head_size=132, dtype=torch.uint8
            )
    for layer in range(deployment.drafts):
        heads = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
        # DFlash numbers a draft's layers after those of the model, of which the small one has 4.
        specs[f"model.layers.{4 + layer}.self_attn.attn"] = (
            SlidingWindowSpec(block_size=size, sliding_window=deployment.window, **heads)
            if deployment.window
            else FullAttentionSpec(block_size=size, **heads)
        )
    return specs


def _plan(config: Any, specs: dict[str, Any]) -> Any:
    try:
        from vllm.v1.core import kv_cache_planning as planner
    except ImportError:  # before 0.33
        from vllm.v1.core import kv_cache_utils as planner

    groups = planner.get_kv_cache_groups(config, dict(specs))
    return planner.get_kv_cache_config_from_groups(config, groups, MEMORY)


def _join_layers(config: Any, specs: dict[str, Any], dense: bool) -> None:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
    from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend
    from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend
    from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend

    class Layer(AttentionLayerBase):
        def __init__(self, backend: Any, spec: Any) -> None:
            self._backend, self._spec = backend, spec

        def get_attn_backend(self) -> Any:
            return self._backend

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return self._spec

    for name, spec in specs.items():
        backend: Any = TritonMLABackend if dense else FlashMLASparseBackend
        if "indexer" in name:
            backend = DeepseekV32IndexerBackend
        if int(name.split(".")[2]) >= 4:
            backend = FlashAttentionBackend
        config.compilation_config.static_forward_context[name] = Layer(backend, spec)


def _allocate(plan: Any, layout: Any, *, apart: bool) -> dict[str, Any]:
    import torch
    from vllm.v1.worker.utils import allocate_kv_cache

    kv = allocate_kv_cache(plan, torch.device("cpu"), layout)
    if apart:
        kv |= {name: view.clone() for name, view in kv.items() if int(name.split(".")[2]) >= 4}
    return kv
