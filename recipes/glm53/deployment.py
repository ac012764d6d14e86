"""A deployment as typed objects: one YAML file in, every value that prefill and decode must share once.

Unknown keys and impossible combinations are findings; nothing is started from a deployment that has any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError

__all__ = ["CPU_CACHE_DTYPES", "Deployment", "DeploymentError", "Finding", "load", "parse"]


#: What the CPU's attention has a row format for. "auto" is the model's dtype.
CPU_CACHE_DTYPES = ("auto", "fp8", "nvfp4_ds_mla")


@dataclass(frozen=True)
class Finding:
    """Something that makes a deployment unusable: where, what, and what to do."""

    code: str
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} {self.fix} [{self.code}]"


class DeploymentError(ValueError):
    """A deployment file that cannot be launched, with all its findings."""

    def __init__(self, source: str, findings: list[Finding]) -> None:
        self.source = source
        self.findings = findings
        super().__init__("\n".join([f"{source} has {len(findings)} problem(s):", *(f"  {f}" for f in findings)]))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class TinyModel(_Strict):
    """How to make the model when its folder is not there (`glm53.model.make`)."""

    layers: Annotated[int, Field(ge=1)] = 4
    seed: int = 0
    index_topk: Annotated[int, Field(gt=0, multiple_of=32)] = 128


class Model(_Strict):
    """path: the model folder, relative to the working directory. make: set only for a generated model."""

    path: Path
    served_name: Annotated[str, Field(min_length=1)]
    make: TinyModel | None = None


class Engine(_Strict):
    """Settings that prefill, decode and aggregated workers share; they must agree or KV cannot move.

    block_size, max_model_len, max_batched_tokens: tokens. kv_cache: bytes per worker, e.g. "256MiB".
    kv_cache_dtype: how a token's row is stored; "auto" is `dtype`.
    nvfp4_policy: how the scales of NVFP4 rows are chosen (plugin flashinfer_nvfp4); None leaves it to the caller's
        environment, and that to the plugin's default.
    """

    device: Literal["cpu"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    block_size: Annotated[int, Field(gt=0)] = 64
    max_model_len: Annotated[int, Field(gt=0)] = 8192
    max_batched_tokens: Annotated[int, Field(gt=0)] = 512
    max_sequences: Annotated[int, Field(gt=0)] = 8
    kv_cache: ByteSize = ByteSize(256 << 20)
    kv_cache_dtype: Literal["auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"] = "auto"
    nvfp4_policy: Literal["rtn", "four_over_six", "search"] | None = None


class KvTransfer(_Strict):
    """How KV moves from prefill to decode.

    layout: "BLHNC" moves whole block rows (plugin vllm_blhnc); "stock" is vLLM's default layout.
    block_allocation: "runs" hands out blocks that lie side by side (plugin vllm_blhnc); "stock" is vLLM's order.
    eviction_window: with "runs", the number of cached blocks, the oldest ones, among which to choose.
    nixl_progress_delay_us: microseconds NIXL's progress thread sleeps between polls; 0 spins one core a worker.
    """

    layout: Literal["BLHNC", "stock"] = "BLHNC"
    block_allocation: Literal["runs", "stock"] = "stock"
    eviction_window: Annotated[int, Field(ge=0)] = 0
    nixl_progress_delay_us: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    lease_seconds: Annotated[int, Field(ge=10)] = 120


class Tools(_Strict):
    """Parsers of Dynamo's frontend; `parser_version` 2 reads tool calls that version 1 loses."""

    call_parser: str = "glm47"
    reasoning_parser: str = "glm45"
    parser_version: Literal[1, 2] = 2


class Workers(_Strict):
    """How many worker processes serve each role."""

    prefill: Annotated[int, Field(ge=0)] = 0
    decode: Annotated[int, Field(ge=0)] = 0
    aggregated: Annotated[int, Field(ge=0)] = 0


class Deployment(_Strict):
    """One deployment: a model, its workers and how they are connected."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
    model: Model
    workers: Workers
    engine: Engine = Engine()
    kv_transfer: KvTransfer = KvTransfer()
    tools: Tools = Tools()
    router: Literal["kv", "round-robin"] = "kv"

    def findings(self) -> list[Finding]:
        """What no single field can see: combinations that cannot work."""
        found = []
        workers, engine = self.workers, self.engine
        if not (workers.prefill or workers.decode or workers.aggregated):
            found.append(
                Finding(
                    "no-workers",
                    "workers",
                    "there is no worker.",
                    "Set prefill and decode, or aggregated, to 1 or more.",
                )
            )
        if bool(workers.prefill) != bool(workers.decode):
            found.append(
                Finding(
                    "half-disaggregated",
                    "workers",
                    f"prefill={workers.prefill} and decode={workers.decode}: each role needs the other.",
                    "Give both at least 1, or use aggregated workers.",
                )
            )
        if workers.aggregated and (workers.prefill or workers.decode):
            found.append(
                Finding(
                    "mixed-roles",
                    "workers.aggregated",
                    "aggregated workers and prefill/decode workers would serve the same model name side by side.",
                    "Set aggregated to 0, or prefill and decode to 0.",
                )
            )
        if engine.block_size % 64:
            found.append(
                Finding(
                    "block-size",
                    "engine.block_size",
                    f"{engine.block_size} tokens do not fit the sparse indexer's cache, whose pages hold 64.",
                    "Use 64 or a multiple of it.",
                )
            )
        if engine.max_batched_tokens < engine.max_sequences:
            found.append(
                Finding(
                    "batch",
                    "engine.max_batched_tokens",
                    f"{engine.max_batched_tokens} is below max_sequences={engine.max_sequences}: some sequences "
                    "could never decode.",
                    "Raise max_batched_tokens or lower max_sequences.",
                )
            )
        if engine.device == "cpu" and engine.kv_cache_dtype not in CPU_CACHE_DTYPES:
            found.append(
                Finding(
                    "cache-dtype",
                    "engine.kv_cache_dtype",
                    f"no row format for {engine.kv_cache_dtype} exists on the CPU.",
                    f"Use {', '.join(CPU_CACHE_DTYPES[:-1])} or {CPU_CACHE_DTYPES[-1]}.",
                )
            )
        if engine.nvfp4_policy and engine.kv_cache_dtype != "nvfp4_ds_mla":
            found.append(
                Finding(
                    "policy-without-nvfp4",
                    "engine.nvfp4_policy",
                    f"{engine.nvfp4_policy} chooses scales of NVFP4 rows, but kv_cache_dtype={engine.kv_cache_dtype} "
                    "has none.",
                    "Set kv_cache_dtype to nvfp4_ds_mla, or leave nvfp4_policy out.",
                )
            )
        transfer = self.kv_transfer
        if transfer.eviction_window and transfer.block_allocation != "runs":
            found.append(
                Finding(
                    "window-without-runs",
                    "kv_transfer.eviction_window",
                    f"{transfer.eviction_window} blocks, but block_allocation={transfer.block_allocation} takes none.",
                    "Set block_allocation to runs, or eviction_window to 0.",
                )
            )
        return found

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run in different workers."""
        return self.workers.prefill > 0

    def aggregate(self) -> Deployment:
        """The same model and engine as one worker that does both, to compare outputs with."""
        return self.model_copy(update={"name": f"{self.name}-agg", "workers": Workers(aggregated=1)})

    def with_layout(self, layout: Literal["BLHNC", "stock"]) -> Deployment:
        """The same deployment with another KV layout; with "stock" block allocation is vLLM's, too."""
        changes: dict[str, Any] = {"layout": layout}
        if layout == "stock":
            changes |= {"block_allocation": "stock", "eviction_window": 0}
        return self.model_copy(update={"kv_transfer": self.kv_transfer.model_copy(update=changes)})


def load(path: Path) -> Deployment:
    """Read a deployment file. Raises `DeploymentError` with all findings; a missing file is one of them."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(
            str(path), [Finding("unreadable", "file", f"{error.strerror or error}.", "Name an existing YAML file.")]
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeploymentError(
            str(path), [Finding("not-yaml", "file", f"it is not YAML: {error}.", "Correct the syntax.")]
        ) from error
    return parse(raw, str(path))


def parse(raw: Any, source: str = "deployment") -> Deployment:
    """Check plain data as `load` does."""
    if not isinstance(raw, dict):
        raise DeploymentError(
            source, [Finding("not-a-mapping", "file", f"it holds {type(raw).__name__}.", "Start with 'name: ...'.")]
        )
    try:
        deployment = Deployment.model_validate(raw)
    except ValidationError as error:
        raise DeploymentError(source, [_finding(item) for item in error.errors()]) from error
    if found := deployment.findings():
        raise DeploymentError(source, found)
    return deployment


def _finding(item: Any) -> Finding:
    field = ".".join(str(part) for part in item["loc"]) or "file"
    if item["type"] == "extra_forbidden":
        return Finding("unknown-key", field, "this key does not exist.", "Remove it or correct its spelling.")
    if item["type"] == "missing":
        return Finding("missing-key", field, "this key is required.", "Add it.")
    return Finding("bad-value", field, f"{item['input']!r}: {item['msg']}.", "Correct the value.")
