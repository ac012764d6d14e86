"""vLLM: sparse MLA on NVFP4 rows where no backend reads them."""

from __future__ import annotations

import ast

from glm53.stage.edits import Body, Entry, Insert, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.topics.vllm_context_gather import GATHER, GATHER_EDITS, ROWS, row_module
from glm53.stage.topics.vllm_nvfp4_scales import WRITER, WRITER_EDITS, WRITER_WORDS
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["NVFP4_SPARSE_MLA"]

_BACKENDS = "v1/attention/backends/mla"
_NAME = "TRITON_MLA_SPARSE_NVFP4"
_ROWS = "nvfp4_ds_mla"
SETTING = "VLLM_NVFP4_MLA_PREFILL_MIB"

#: By major compute capability: the backends that vLLM asks there, by file and class.
_ASKED = {
    9: (
        ("flashmla_sparse.py", "FlashMLASparseBackend"),
        ("flashattn_mla_sparse.py", "FlashAttnMLASparseBackend"),
        ("flashinfer_mla_sparse_sm90.py", "FlashInferMLASparseSM90Backend"),
    ),
    12: (("flashinfer_mla_sparse.py", "FlashInferMLASparseSM120Backend"),),
}


def _solved(tree: Tree) -> str | None:
    readers = [next((name for file, name in asked if _reads(tree, file, name)), None) for asked in _ASKED.values()]
    return " and ".join(name for name in readers if name) if all(readers) else None


def _reads(tree: Tree, file: str, name: str) -> bool:
    """Whether a backend lists the rows, and does not name them among the combinations that it looks at."""
    source = tree.source(f"{_BACKENDS}/{file}")
    listed = any(
        _ROWS in ast.unparse(node)
        for node in source.scope(name).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "supported_kv_cache_dtypes"
    )
    return listed and _ROWS not in ast.unparse(source.scope(f"{name}.supports_combination"))


_WORKSPACE = f"""\
from vllm import envs

mib = envs.{SETTING}
return PREFILL_WORKSPACE_BYTES if mib is None else mib << 20
"""

NVFP4_SPARSE_MLA = Topic(
    id="nvfp4-sparse-mla",
    project=PROJECTS["vllm"],
    title="[Attention] Sparse MLA on nvfp4_ds_mla rows by Triton, also on Hopper and SM120",
    releases=">=0.31,<0.34",
    how=f"{_NAME} is an attention backend for this cache dtype alone. A Triton kernel reads the rows where they lie in "
    "the paged cache: 1 to 128 heads, bfloat16 queries, the keys of a token shared by several programs whose results "
    "are merged, and the log-sum-exp that decode context parallelism needs. Prefill tokens are further tokens of that "
    f"kernel; on 10.x their rows can be decoded once into a workspace ({SETTING}, 144 by default) for FlashInfer's "
    "FP8 kernel, where that is planned to be cheaper. The CUDA platform asks the backend last and for these rows only, "
    "so FlashMLA, which reads them on 10.x, comes first; elsewhere no backend does. Off 10.x a Triton kernel also "
    "writes the rows, because the existing writers take e2m1 conversions that 9.0 does not have. That writer and the "
    "gather of a cached context, without which short prompts fail, are topics of their own, nvfp4-scales and "
    "context-gather, whose edits are part of this one.",
    risks="Other cache dtypes take the paths they took, and so do these rows on 10.x unless the backend is named. The "
    "order of direct and staged prefill rests on published figures of other kernels. Attention sinks, HiSparse, "
    "prefill context parallelism and other sizes than 512 and 64 are refused when the backend is chosen. Nothing of "
    "this topic has run on a GPU: kernels were compiled for compute capability 9.0 to 12.0 and compared with float64 "
    "in Triton's interpreter; graphs, speed and an engine are not proven. A CUDA kernel for the same rows stays out of "
    "vLLM: it belongs into FlashInfer.",
    near=f"{_BACKENDS}/flashmla_sparse.py",
    solved=_solved,
    edits=(
        *GATHER_EDITS,
        *WRITER_EDITS,
        Insert(
            file="v1/attention/backends/registry.py",
            anchor="AttentionBackendEnum",
            where="first",
            code=f"""\
            {_NAME} = (
                "vllm.v1.attention.backends.mla.nvfp4_mla_sparse.Nvfp4MLASparseBackend"
            )
            """,
            blank=1,
        ),
        Value(
            file="platforms/cuda.py",
            scope="CudaPlatformBase.get_valid_backends",
            target="backend_priorities",
            code=f"""{{value}} + (
            [AttentionBackendEnum.{_NAME}]
            if attn_selector_config.kv_cache_dtype == "{_ROWS}"
            else []
        )""",
        ),
        Entry(
            file="envs.py",
            target="environment_variables",
            key=SETTING,
            code=f"""lambda: maybe_convert_int(
        os.getenv("{SETTING}", None)
    )""",
        ),
    ),
    places=(
        *ROWS,
        GATHER,
        *WRITER,
        row_module(
            "plan",
            only=(
                *("STAGE_KEYS", "OVERHEAD_STAGES", "MERGE_STAGES", "MAX_SPLITS", "SPLIT_STAGES"),
                "PREFILL_WORKSPACE_BYTES",
                "plan_splits",
            ),
        ),
        *map(row_module, ("limits", "refusals", "device", "decoder", "trtllm", "staging", "prefill", "prefill_plan")),
        *map(row_module, ("kernels/decode", "kernels/merge", "kernels/stage")),
        row_module(
            "workspace",
            without=("MOST_MIB",),
            edits=(
                Value(file="", scope="", target="SETTING", code=f'"{SETTING}"'),
                Body(file="", scope="chosen_workspace", code=_WORKSPACE),
            ),
        ),
        Place(
            "plugins/flashinfer_nvfp4/rows_attention.py",
            f"{{package}}/{_BACKENDS}/nvfp4_mla_sparse_impl.py",
            "vllm.v1.attention.backends.mla.nvfp4_mla_sparse_impl",
        ),
        Place(
            "recipes/glm53/stage/sources/vllm/nvfp4_mla_sparse.py",
            f"{{package}}/{_BACKENDS}/nvfp4_mla_sparse.py",
        ),
    ),
    tests=(
        Place("recipes/glm53/stage/tests/vllm/test_nvfp4_mla_sparse.py", "tests/v1/attention/test_nvfp4_mla_sparse.py"),
        Place(
            "recipes/glm53/stage/tests/vllm/test_nvfp4_mla_kernels.py",
            "tests/kernels/attention/test_nvfp4_mla_kernels.py",
        ),
        Place(
            "recipes/glm53/stage/sources/vllm/benchmark_nvfp4_mla_decode.py",
            "benchmarks/kernels/benchmark_nvfp4_mla_decode.py",
        ),
    ),
    evidence=(
        Evidence(
            "no head of decode's bfloat16 output is off by more than 0.5 % of its largest element from float64, of "
            "which rounding takes 0.4, and no log-sum-exp by more than 1e-5 of it, in Triton's interpreter",
            "pytest tests/flashinfer_nvfp4/test_kernels_stock.py",
        ),
        Evidence(
            "decode, drafts, prefill beside decode and blocks that lie apart give float64's attention through vLLM's "
            "base class and index conversion, and the outputs of 2 and 4 shards merge to the whole",
            "pytest tests/flashinfer_nvfp4/test_backend_attention_stock.py",
        ),
        Evidence(
            "the kernels compile for compute capability 9.0, 10.0, 10.3 and 12.0",
            "pytest tests/flashinfer_nvfp4/test_kernel_compile_stock.py",
        ),
        Evidence(
            "vLLM chooses FLASHMLA_SPARSE for these rows on 10.x and no backend on 9.0 and 12.0",
            "pytest tests/flashinfer_nvfp4/test_backend_stock.py",
        ),
    ),
    said=Said(
        "nvfp4_ds_mla is read on 10.x alone, by FlashMLA, which pads 16 heads to 64. With this cache dtype an engine "
        "on Hopper or SM120 does not start, because no backend takes it.",
        "https://github.com/vllm-project/vllm/pull/59342",
        "Backends of vLLM read nvfp4_ds_mla rows on compute capability 9.0 and 12.0.",
    ),
    renamed={
        ", the workspace that the fork of\nvLLM in which these rows came up keeps at GLM-5.3's longest context.": ".",
        "Environment variable of every worker: MiB of workspace, 0 for": "MiB of workspace, 0 for",
        " ``benchmarks/nvfp4_gpu.py`` prints what a device takes.": "",
        "\n\n    Raises `SettingRefused` for anything but a whole number of MiB from 0 to 1,048,576.\n    ": "",
        "``FLASHINFER_NVFP4_PREFILL_MIB=0``": f"``{SETTING}=0``",
        ",\n    and `SettingRefused` for a setting that is no amount, also where nothing would be staged": "",
        "What the vLLM backend cannot serve": "What the backend cannot serve",
        "Which launches this package's own kernels take": "Which launches the Triton kernels take",
        "Why no kernel of this package takes": "Why no kernel takes",
        'getLogger("vllm.flashinfer_nvfp4")': 'getLogger("vllm.nvfp4_mla")',
        '"flashinfer_nvfp4: prefill ': '"NVFP4 rows: prefill ',
        **WRITER_WORDS,
    },
)
