"""vLLM: sparse MLA and the DSA indexer on the CPU."""

from __future__ import annotations

from glm53.stage.edits import Body, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.topics.vllm_context_gather import ROW_WORDS, ROWS, row_module
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CPU_SPARSE_MLA"]

_PLATFORM = "platforms/cpu.py"
_SCOPE = "CpuPlatform.get_attn_backend_cls"
_HERE, _OPS, _BACKENDS = "plugins/vllm_cpu_dsa", "v1/attention/ops/cpu_sparse_mla", "v1/attention/backends/mla"
_DOTTED = f"vllm.{_OPS}".replace("/", ".")


def _solved(tree: Tree) -> str | None:
    source = tree.source(_PLATFORM)
    if source.calls(_SCOPE, "NotImplementedError"):
        return None
    return f"{source.file}: {_SCOPE} refuses no sparse attention"


def _op(name: str, *edits: Body, without: tuple[str, ...] = ()) -> Place:
    return Place(
        f"{_HERE}/{name}.py", f"{{package}}/{_OPS}/{name}.py", f"{_DOTTED}.{name}", without=without, edits=edits
    )


def _backend(name: str, there: str, without: tuple[str, ...] = ()) -> Place:
    module = f"vllm.{_BACKENDS}.{there}".replace("/", ".")
    return Place(f"{_HERE}/{name}.py", f"{{package}}/{_BACKENDS}/{there}.py", module, without=without)


_FORMATS = (
    Body(
        file="",
        scope="row_formats",
        code="""\
        from flashinfer_nvfp4.cpu_rows import Nvfp4Rows

        served: tuple[RowFormat, ...] = (PlainRows(), Fp8Rows(), Nvfp4Rows())
        return {cache_dtype: rows for rows in served for cache_dtype in rows.cache_dtypes}
        """,
    ),
    Body(
        file="",
        scope="row_format",
        code="""\
        serving = row_formats()
        if cache_dtype in serving:
            return serving[cache_dtype]
        raise Unsupported(
            f"--kv-cache-dtype {cache_dtype}",
            "no row format writes and reads such rows on the CPU",
            ", ".join(f"{dtype} ({rows.name})" for dtype, rows in sorted(serving.items())),
            "Choose one of these",
        )
        """,
    ),
)
_DEFAULT_POLICY = (
    Import(file="", code="from flashinfer_nvfp4.policy import DEFAULT"),
    Body(file="", scope="Nvfp4Rows.__init__", code="self.policy = DEFAULT"),
)

CPU_SPARSE_MLA = Topic(
    id="cpu-sparse-mla",
    project=PROJECTS["vllm"],
    title="[CPU] Sparse MLA and the DSA indexer in plain torch",
    releases=">=0.31,<0.34",
    how="The CPU platform names an attention backend for DeepSeek-V3.2 and GLM-5 whose every token takes the top-k "
    "path: it reads the selected rows of the paged cache, in the model's dtype, in FP8 or as nvfp4_ds_mla. The indexer "
    "writes and reads its stock pages. Both are plain torch, written to be read, and equal a float64 reference. Block "
    "size, chunked prefill and prefix caching stay as they are asked for, since no kernel here limits them.",
    risks="Other models take the paths they took. Sparse attention on the CPU is a reference, not fast. Compilation, "
    "context and pipeline parallelism are refused for these models. In a process that serves one, torch's batched "
    "product of one row is computed as the first of two equal rows, so that tokens do not depend on their batch.",
    near=_PLATFORM,
    solved=_solved,
    edits=(
        Insert(
            file=_PLATFORM,
            anchor=_SCOPE,
            where="first",
            code=f"""\
            if attn_selector_config.use_sparse:
                from vllm.config import get_current_vllm_config
                from {_DOTTED} import guards, invariance

                if guards.is_served(get_current_vllm_config().model_config):
                    invariance.install()
                    return "vllm.v1.attention.backends.mla.cpu_sparse.CpuSparseMLABackend"
            """,
        ),
        Insert(
            file=_PLATFORM,
            anchor="CpuPlatform.check_and_update_config",
            where="first",
            code=f"""\
            from {_DOTTED}.settle import (
                Kept,
                without_compiled_rotary,
            )

            kept = Kept.of(vllm_config)
            """,
            blank=1,
        ),
        Insert(
            file=_PLATFORM,
            anchor="CpuPlatform.check_and_update_config",
            where="last",
            code="""\
            if kept is not None:
                kept.restore(vllm_config)
                without_compiled_rotary(vllm_config)
            """,
            blank=1,
        ),
        Insert(
            file=_PLATFORM,
            anchor="CpuPlatform.update_block_size_for_backend",
            where="first",
            code=f"""\
            from {_DOTTED}.guards import is_served

            if is_served(vllm_config.model_config):
                return
            """,
            blank=1,
        ),
        Insert(
            file="model_executor/models/deepseek_v2.py",
            anchor="DeepseekV32IndexerCache.get_attn_backend",
            where="first",
            code="""\
            if current_platform.is_cpu():
                from vllm.v1.attention.backends.mla.cpu_indexer import CpuIndexerBackend

                return CpuIndexerBackend
            """,
        ),
        Insert(
            file="model_executor/layers/quantization/utils/fp8_utils.py",
            anchor="per_token_group_quant_fp8",
            where="first",
            code=f"""\
            if (
                current_platform.is_cpu()
                and use_ue8m0
                and not column_major_scales
                and out_q is None
            ):
                from {_DOTTED}.quantize import quantize_groups

                return quantize_groups(x, group_size, eps, use_ue8m0=True)
            """,
        ),
        Insert(
            file="model_executor/layers/sparse_attn_indexer.py",
            anchor="SparseAttnIndexer.forward_cpu",
            where="first",
            code="""\
            from vllm.v1.attention.backends.mla.cpu_indexer import index_step, step_of

            if (step := step_of(self)) is not None:
                return index_step(self, step, hidden_states, q_quant, k, weights)
            """,
            blank=1,
        ),
    ),
    places=(
        Place(
            f"{_HERE}/__init__.py",
            f"{{package}}/{_OPS}/__init__.py",
            _DOTTED,
            without=("SETTING", "PLATFORM", "_registered", "enabled", "platform", "register", "__all__"),
        ),
        *map(_op, ("errors", "paged", "quantize", "attention", "indexer", "guards", "settle", "invariance")),
        _op("rows", *_FORMATS, without=("GROUP",)),
        _backend("mla_backend", "cpu_sparse"),
        _backend("indexer_backend", "cpu_indexer", without=("CpuSparseAttnIndexer",)),
        *ROWS,
        row_module("cpu_rows", edits=_DEFAULT_POLICY),
    ),
    tests=(
        Place("recipes/glm53/stage/tests/vllm/test_cpu_sparse_mla.py", "tests/v1/attention/test_cpu_sparse_mla.py"),
    ),
    evidence=(
        Evidence(
            "greedy tokens and log probabilities are those of transformers' GLM-5 and DeepSeek-V3.2, below index_topk "
            "tokens to 1e-4 and beyond it but for swaps at the edge of a selection",
            "pytest tests/vllm_cpu_dsa/test_oracle_stock.py",
        ),
        Evidence(
            "tokens are the same in one step, in chunks, after cache hits, in every layout, in batches and after "
            "preemption",
            "pytest tests/vllm_cpu_dsa/test_paths_stock.py",
        ),
        Evidence(
            "a decoded token of a 4-layer model at 4,096 tokens of context takes 34 ms on one thread",
            "python benchmarks/cpu_dsa.py DIR --contexts 1024 4096 16384",
        ),
    ),
    records=("vllm_cpu_dsa:cpu-indexer-backend", "vllm_cpu_dsa:cpu-query-quantization"),
    said=Said(
        "The CPU platform refuses sparse attention, so DeepSeek-V3.2 and GLM-5 cannot be run, debugged or tested "
        "without a GPU: neither their cache layouts, nor prefix caching, nor transfers between workers.",
        "https://github.com/vllm-project/vllm/issues/54018",
        "CpuPlatform.get_attn_backend_cls serves models with a DSA indexer.",
    ),
    renamed={
        ": entry point ``nvfp4`` of the group ``vllm_cpu_dsa.row_formats``": "",
        "under the policy of ``FLASHINFER_NVFP4_POLICY``": "whose scales are searched for",
        "Raises `RowsRefused` when it is built if the setting names no policy, and when it encodes if": "Raises "
        "`RowsRefused` when it encodes if",
        "\n\nFormats plug in through the entry point group ``vllm_cpu_dsa.row_formats``; each entry names a class "
        "that\nsatisfies `RowFormat` and is built without arguments. ``--kv-cache-dtype`` chooses among them.\n": "\n\n"
        "``--kv-cache-dtype`` chooses among them.\n",
        "Every installed format": "Every format",
        "\n\nInstalled but idle until ``VLLM_CPU_DSA=1`` is set, so a GPU host that has the bundle is untouched. vLLM "
        "calls\n`platform` once a process to learn which platform to use and `register` in every process.\n": "",
        "The one error of this plugin": "The one error of the CPU's sparse attention",
        "that this plugin cannot serve": "that it cannot serve",
        "whose sparse attention this plugin computes": "whose sparse attention is computed here",
        "the model's own MTP layer has been tested with the CPU's sparse attention": "the model's own MTP layer has "
        "been tested with it",
        **ROW_WORDS,
    },
)
