"""Sections of a deployment that all roles share: each value that must agree is a key here, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ByteSize, Field

from glm53.deployment.roles import Strict

__all__ = [
    "CPU_CACHE_DTYPES",
    "Adapter",
    "Capacity",
    "Cluster",
    "Engine",
    "Frontend",
    "Images",
    "KvTransfer",
    "Model",
    "Ports",
    "Tier",
    "TinyModel",
    "Tools",
]

#: What the CPU's attention has a row format for. "auto" is the model's dtype.
CPU_CACHE_DTYPES = ("auto", "fp8", "nvfp4_ds_mla")

#: YAML reads ``off`` without quotes as false.
_Off = BeforeValidator(lambda value: "off" if value is False else value)

_Port = Annotated[int, Field(ge=1024, le=65535)]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
_SlurmName = Annotated[str, Field(pattern=r"^[\w.,@:+-]+$")]  # one word of an #SBATCH line
_Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class TinyModel(Strict):
    """How to make the model when its folder is not there (`glm53.model.make`)."""

    layers: Annotated[int, Field(ge=1)] = 4
    seed: int = 0
    index_topk: Annotated[int, Field(gt=0, multiple_of=32)] = 128


class Adapter(Strict):
    """A LoRA adapter that is served beside the model under a name of its own."""

    name: Annotated[str, Field(min_length=1)]
    uri: Annotated[str, Field(pattern=r"^(file|s3|hf)://.+")]
    rank: Annotated[int, Field(gt=0, le=512)] = 16


class Model(Strict):
    """What is served.

    path: a checkpoint's folder: relative to the working directory on one machine, inside the cluster's volume on a
        cluster. repository: a model on the Hugging Face hub instead, fetched once into the volume; revision: its
        commit, pinned here or by a file of pins. make: set only for a generated model.
    weights: how the weights are stored, to see beforehand whether they fit.
    """

    path: Path | None = None
    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    served_name: Annotated[str, Field(min_length=1)]
    make: TinyModel | None = None
    weights: Literal["bf16", "fp8", "nvfp4"] | None = None
    adapters: tuple[Adapter, ...] = ()

    @property
    def folder(self) -> Path:
        """The checkpoint's folder; raises ValueError where the model is a repository."""
        if self.path is None:
            raise ValueError(f"the model is the repository {self.repository}, not a folder; set model.path")
        return self.path


class Engine(Strict):
    """Settings that prefill, decode and aggregated workers share; they must agree or KV cannot move.

    block_size, max_model_len, max_batched_tokens: tokens. kv_cache: bytes per worker, e.g. "256MiB", on a CPU.
    gpu_memory: fraction of a GPU's memory for vLLM, elsewhere.
    kv_cache_dtype: how a token's row is stored; "auto" is `dtype`.
    nvfp4_policy: how the scales of NVFP4 rows are chosen (plugin flashinfer_nvfp4); None leaves it to the caller's
        environment, and that to the plugin's default.
    nvfp4_kernel, nvfp4_fold: what reads NVFP4 rows on a GPU, and whether latents are folded (the same plugin).
    attention_backend: vLLM's, for all roles; needed on GPUs.
    mtp_depth: tokens that the model's own prediction layer drafts; 0 drafts none.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    block_size: Annotated[int, Field(gt=0)] = 64
    max_model_len: Annotated[int, Field(gt=0)] = 8192
    max_batched_tokens: Annotated[int, Field(gt=0)] = 512
    max_sequences: Annotated[int, Field(gt=0)] = 8
    kv_cache: ByteSize = ByteSize(256 << 20)
    gpu_memory: Annotated[float, Field(gt=0, lt=1)] = 0.87
    kv_cache_dtype: Literal["auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"] = "auto"
    nvfp4_policy: Literal["rtn", "four_over_six", "search"] | None = None
    nvfp4_kernel: Annotated[Literal["auto", "off", "cuda", "flashinfer", "triton", "gather"] | None, _Off] = None
    nvfp4_fold: bool | None = None
    attention_backend: Literal["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"] | None = None
    mtp_depth: Annotated[int, Field(ge=0, le=8)] = 0


class KvTransfer(Strict):
    """How KV moves from prefill to decode.

    layout: "BLHNC" moves whole block rows (plugin vllm_blhnc); "stock" is vLLM's default layout.
    block_allocation: "runs" hands out blocks that lie side by side (plugin vllm_blhnc); "stock" is vLLM's order.
    eviction_window: with "runs", the number of cached blocks, the oldest ones, among which to choose.
    nixl_progress_delay_us: microseconds NIXL's progress thread sleeps between polls; 0 spins one core a worker, None
        leaves that to NIXL.
    lease_seconds: how long prefill keeps blocks that decode has not fetched.
    on_failure: "fail" ends a request whose KV did not arrive; nothing else is safe between prefill and decode.
    """

    layout: Literal["BLHNC", "stock"] = "BLHNC"
    block_allocation: Literal["runs", "stock"] = "stock"
    eviction_window: Annotated[int, Field(ge=0)] = 0
    nixl_progress_delay_us: Annotated[int, Field(ge=0, le=1_000_000)] | None = 1000
    lease_seconds: Annotated[int, Field(ge=10)] = 120
    on_failure: Literal["fail", "recompute"] = "fail"


class Tier(Strict):
    """Mooncake's DRAM tier behind prefill's GPU cache.

    memory: DRAM that each prefill node gives. buffer: host memory of each engine, on a CPU; GPUs need none.
    lease_seconds: how long a block that was found cannot be evicted, unless its lease is renewed: engines do, as long
        as they are about to load it. Until then a full pool has no room for new blocks.
    poll_seconds: between two looks for evicted blocks. The router may count on a block that is gone for so long, and
        the time that the master and a step of the engine take.
    chunk_tokens: tokens of one object, on the CPU; GPUs store block by block.
    """

    memory: ByteSize
    buffer: ByteSize = ByteSize(4 << 30)
    protocol: Literal["rdma", "tcp"] = "rdma"
    lease_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
    poll_seconds: Annotated[float, Field(gt=0, le=3600)] = 5
    chunk_tokens: Annotated[int, Field(ge=64)] = 1024


class Tools(Strict):
    """Tool calls: Dynamo's parsers, and the grammar that makes calls come out right.

    parser_version: 2 reads tool calls that version 1 loses. structural_tags: the plugin of that name; "enforce"
        replaces Dynamo's tags, "report" counts what would change, "off" leaves them alone.
    schema_mode: "strict" constrains the arguments of every tool, "auto" those of tools that ask for it.
    frontend: "structural_tags" starts that plugin's frontend, which streams arguments and reads calls itself; workers
        then announce no parsers. "stock" is Dynamo's.
    """

    call_parser: str = "glm47"
    reasoning_parser: str = "glm45"
    parser_version: Literal[1, 2] = 2
    structural_tags: Annotated[Literal["off", "report", "enforce"], _Off] = "off"
    schema_mode: Literal["auto", "strict"] = "auto"
    frontend: Literal["stock", "structural_tags"] = "stock"


class Frontend(Strict):
    """Dynamo's frontend and its router.

    session_seconds: a session stays with the decode group that served it for so long; None does not bind sessions.
    busy_blocks: refuse where every decode group uses more than this fraction of its blocks; None queues.
    busy_prefill_tokens: refuse where every prefill group has more prompt tokens than this waiting; None queues.
    full_status: the HTTP status of these refusals; Dynamo's own, 529, is one that few clients try again after.
    hold_headers: a stream's headers wait for its first token, so that until then another worker or deployment can take
        the request over; otherwise they are sent at once.
    retries: how often a request of which nothing was streamed goes to another worker when its own is lost.
    """

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    session_seconds: Annotated[int, Field(ge=1)] | None = None
    busy_blocks: Annotated[float, Field(gt=0, le=1)] | None = None
    busy_prefill_tokens: Annotated[int, Field(ge=1)] | None = None
    full_status: Literal[429, 503] = 503
    hold_headers: bool = True
    retries: Annotated[int, Field(ge=0, le=8)] = 0


class Ports(Strict):
    """Base ports on a cluster. Ranks and groups that share an address count up from them."""

    http: _Port = 8000
    system: _Port = 9090
    side_channel: _Port = 5600
    kv_events: _Port = 20080
    data_parallel: _Port = 13445
    tier_rpc: _Port = 50051
    tier_metrics: _Port = 9003
    tier_store: _Port = 50060


class Images(Strict):
    """Container images, one a role: names in `registry`, tagged with the release.

    digests: image name -> digest, pinned here or by a file of pins.
    """

    registry: Annotated[str, Field(pattern=r"^[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*$")] = "nvcr.io/nvidia/ai-dynamo"
    frontend: str = "dynamo-frontend"
    engine: str = "vllm-runtime"
    store: str = "vllm-runtime"
    digests: dict[str, _Digest] = Field(default_factory=dict)


class Capacity(Strict):
    """ "reserved" keeps every group; "serverless" lets decode groups come and go between two numbers.

    priority: on Kubernetes, of the pods, in a PriorityClass of their own: reserved capacity takes the place of pods of
        lower priority where there is no room, serverless capacity waits. None gives them none.
    """

    policy: Literal["reserved", "serverless"] = "reserved"
    min_decode: Annotated[int, Field(ge=1)] | None = None
    max_decode: Annotated[int, Field(ge=1)] | None = None
    priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] | None = None


class Cluster(Strict):
    """What a cluster calls things. No key holds a secret: secrets are named and read by the cluster.

    volume: claim of the shared volume that holds models and plugins; on Slurm `shared` is its folder.
    compute_domain: whether NVLink across nodes is granted by a ComputeDomain (NVIDIA's DRA driver).
    rdma: resource that grants a pod a network device, e.g. "rdma/ib". partition, account, hours: Slurm's.
    prometheus: where serverless capacity reads how many requests wait.
    """

    volume: _Name = "models"
    hub_secret: _Name = "hub-token"
    pull_secret: _Name | None = None
    priority_class: _Name | None = None
    rdma: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9._-]+$")] | None = None
    compute_domain: bool = True
    shared: Path = Path("/shared")
    partition: _SlurmName | None = None
    account: _SlurmName | None = None
    hours: Annotated[int, Field(ge=1, le=720)] = 24
    prometheus: Annotated[str, Field(pattern=r"^https?://.+")] = "http://prometheus-operated.monitoring.svc:9090"
