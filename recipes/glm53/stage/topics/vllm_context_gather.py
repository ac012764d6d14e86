"""vLLM: dense prefill whose cached context is in NVFP4 rows."""

from __future__ import annotations

import ast

from glm53.stage.edits import Edit, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CONTEXT_GATHER", "GATHER", "GATHER_EDITS", "ROWS", "ROW_WORDS", "row_module"]

_FILE = "_custom_ops.py"
_SCOPE = "gather_and_maybe_dequant_cache"
_HERE, _THERE = "plugins/flashinfer_nvfp4", "v1/attention/ops/nvfp4_mla"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for node in ast.walk(source.scope(_SCOPE)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "nvfp4" in node.value:
            return f"{source.file}: line {node.lineno}"
    return None


def row_module(
    name: str, without: tuple[str, ...] = (), edits: tuple[Edit, ...] = (), only: tuple[str, ...] = ()
) -> Place:
    """A module of the rows, by its name in the plugin."""
    module = f"{_THERE}/{name}".replace("/", ".")
    return Place(f"{_HERE}/{name}.py", f"{{package}}/{_THERE}/{name}.py", f"vllm.{module}", without, edits, only)


def _package(folder: str) -> Place:
    inside = f"{_THERE}/{folder}".rstrip("/")
    return Place(
        f"{_HERE}/{folder}/__init__.py".replace("//", "/"),
        f"{{package}}/{inside}/__init__.py",
        f"vllm.{inside}".replace("/", "."),
    )


ROWS = (
    _package(""),
    _package("kernels"),
    row_module("errors", ("BuildRefused", "FingerprintMismatch", "SettingRefused")),
    *map(row_module, ("rowformat", "codec", "tensors")),
    row_module("policy", ("chosen_policy", "SETTING")),
    *map(row_module, ("kernels/arguments", "kernels/elements", "kernels/gather")),
)
"""Format, codec and gather kernel of NVFP4 rows, as other topics about the rows need them, too."""

ROW_WORDS = {
    "import triton\nimport triton.language as tl\n": "from vllm.triton_utils import tl, triton\n",
    "import triton\n": "from vllm.triton_utils import triton\n",
    "flashinfer_nvfp4.": "vllm.v1.attention.ops.nvfp4_mla.",
    ", listed in docs/nvfp4.md": "",
    " (docs/nvfp4.md has the error)": "",
    "The errors of this plugin": "The errors of NVFP4 rows",
    "as the stock writer": "as vLLM's CUDA writer",
    ", and the one setting for it. Standard": ". Standard",
}
"""What their modules say of the plugin, and import as vLLM wants it."""

GATHER_EDITS: tuple[Edit, ...] = (
    Insert(
        file=_FILE,
        anchor=_SCOPE,
        where="first",
        code="""\
        if kv_cache_dtype == "nvfp4_ds_mla":
            from vllm.v1.attention.ops.nvfp4_mla.context_gather import gather_context

            gather_context(
                src_cache, dst, block_table, cu_seq_lens, num_tokens, seq_starts
            )
            return
        """,
    ),
)
"""vLLM's gather of a cached context, sent to the rows' own."""

GATHER = row_module("context_gather", ("activate", "around_gather"))

CONTEXT_GATHER = Topic(
    id="context-gather",
    project=PROJECTS["vllm"],
    title="[Attention] Gather the cached context of a dense prefill from nvfp4_ds_mla rows",
    releases=">=0.31,<0.34",
    how="gather_and_maybe_dequant_cache sends this dtype to a gather of its own: a Triton kernel that decodes the rows "
    "into the workspace, and a torch reference of the format that it is tested against, which also serves CPUs.",
    risks="Other cache dtypes take the path they took. The kernel is compiled at the first such prompt.",
    near=_FILE,
    solved=_solved,
    edits=GATHER_EDITS,
    places=(*ROWS, GATHER),
    tests=(
        Place("recipes/glm53/stage/tests/vllm/test_nvfp4_context.py", "tests/kernels/attention/test_nvfp4_context.py"),
    ),
    evidence=(
        Evidence(
            "stock ends at the first prompt of at most index_topk tokens with a cached prefix, on all three releases",
            "pytest tests/flashinfer_nvfp4/test_context_gather_stock.py",
        ),
    ),
    why="A prompt of at most index_topk tokens prefills with dense attention, and gathers the part of it that is "
    "cached already (a prefix hit, an earlier chunk) by gather_and_maybe_dequant_cache. Its CUDA code knows auto "
    "and the fp8 kinds: with nvfp4_ds_mla the engine ends at the first such prompt.",
    records=("flashinfer_nvfp4:context-of-nvfp4-rows",),
    renamed=ROW_WORDS,
)
