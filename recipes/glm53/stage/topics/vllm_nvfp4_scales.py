"""vLLM: NVFP4 rows whose block scales are searched for."""

from __future__ import annotations

import ast

from glm53.stage.edits import Body, Call, Edit, Entry, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.topics.vllm_context_gather import ROW_WORDS, ROWS, row_module
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["NVFP4_SCALES", "WRITER", "WRITER_EDITS", "WRITER_WORDS"]

_FUSED = "models/deepseek_v32/attention.py"
_OPS = "_custom_ops.py"
SETTING = "VLLM_NVFP4_MLA_SCALES"


def _solved(tree: Tree) -> str | None:
    source = tree.source("models/deepseek_v32/common/kernels.py")
    given = source.parameters("fused_norm_rope")
    named = [name for name in given if "policy" in name or "scale_search" in name]
    if named:
        return f"{source.file}: fused_norm_rope takes {named[0]}"
    for node in ast.walk(tree.source("envs.py").module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("VLLM_NVFP4_MLA"):
            return f"envs.py: line {node.lineno} has {node.value}"
    return None


_WRITE = """\
tokens = min(latent.shape[0], slots.shape[0])
latent, rope, slots = latent[:tokens], rope[:tokens], slots[:tokens]
if cache.device.type == "cpu":
    from flashinfer_nvfp4.codec import encode_rows

    held = (slots >= 0) & (slots < cache.shape[0] * cache.shape[1])
    inside = slots[held].long()
    rows = encode_rows(latent[held], rope[held], written_policy())
    cache[inside // cache.shape[1], inside % cache.shape[1]] = rows
    return
from flashinfer_nvfp4.kernels.encode import encode

encode(latent, rope, cache, slots, written_policy())
"""

_WRITES = """\
from vllm.platforms import current_platform

elsewhere = current_platform.is_cuda() and not current_platform.is_device_capability_family(100)
return elsewhere or written_policy() != STOCK_POLICY
"""

WRITER_EDITS: tuple[Edit, ...] = (
    Insert(
        file=_OPS,
        anchor="concat_and_cache_mla",
        where="first",
        code="""\
        if kv_cache_dtype == "nvfp4_ds_mla":
            from vllm.v1.attention.ops.nvfp4_mla import writer

            if writer.writes():
                writer.write(kv_c, k_pe, kv_cache.view(torch.uint8), slot_mapping)
                return
        """,
    ),
    Insert(
        file=_FUSED,
        anchor="DeepseekV32Indexer",
        where="before",
        code="norm_rope = around_fused_write(fused_norm_rope)",
        blank=2,
    ),
    Call(file=_FUSED, scope="", call="fused_norm_rope", code="norm_rope({arguments})"),
    Import(file=_FUSED, code="from vllm.v1.attention.ops.nvfp4_mla.writer import around_fused_write"),
    Entry(
        file="envs.py",
        target="environment_variables",
        key=SETTING,
        code=f"""\
env_with_choices(
        "{SETTING}", "rtn", ["rtn", "four_over_six", "search"]
    )""",
    ),
)
"""Rows that Triton writes, by the cache update and behind the fused norm and RoPE."""

WRITER = (
    row_module("settings", only=("CACHE_DTYPE",)),
    row_module("kernels/encode"),
    row_module(
        "writer",
        without=("_policy", "_cuda", "activate", "warm_up"),
        edits=(
            Body(file="", scope="writes", code=_WRITES),
            Body(file="", scope="written_policy", code=f"from vllm import envs\n\nreturn envs.{SETTING}"),
            Body(file="", scope="write", code=_WRITE),
        ),
    ),
)
"""What writes them."""

WRITER_WORDS = {
    "What an operator can set about the vLLM backend, read strictly. Standard library only; the rows' policy is "
    "in\n`flashinfer_nvfp4.policy`.": "The name of the rows.",
    "Who writes rows in this process, and under which policy.": f"Rows under the policy of {SETTING}.",
    "Stock writes them under ``rtn`` until an attention layer of this plugin is built. From then on the layers' "
    "rows are\nwritten here, after": "Other policies than ``rtn``, and all rows on devices other than 10.x, on which "
    "the other writers have not\nbeen read, are written here: after",
    " (`flashinfer_nvfp4.patches`)": "",
    "Of vLLM's own writers.": "Of the writers that do not ask for one.",
    "whoever writes this process's rows: the environment's once `activate` was called, else stock's": "this "
    "process's rows",
    "and not by stock.": "and not by those.",
    "Stock's fused writer makes": "The fused writer makes",
    "without stock's writer": "without its writer",
    **ROW_WORDS,
}
"""What these modules say of the plugin."""

NVFP4_SCALES = Topic(
    id="nvfp4-scales",
    project=PROJECTS["vllm"],
    title="[Attention] Search for the block scales of nvfp4_ds_mla rows",
    releases=">=0.31,<0.34",
    how=f"{SETTING} chooses how the writer of nvfp4_ds_mla rows finds a block's e4m3 scale: 'rtn' divides the largest "
    "value by 6, as today and by default; 'four_over_six' tries 4, too, and 'search' tries the scales around it, and "
    "each takes the one with the least squared error. The bytes are read as before. With another value than 'rtn', "
    "and on devices other than 10.x, a Triton kernel writes the rows, also behind the fused norm and RoPE of GLM-5 and "
    "DeepSeek-V3.2.",
    risks="None with 'rtn' on 10.x. Else GLM-5's attention takes one launch more a layer, and its rows are made of the "
    "values that attention gets, rounded to the model's dtype, not of those before. Prefill and decode workers, and "
    "what stores blocks, may have different values: the rows mean the same. Nothing of this has run on a GPU: the "
    "kernel was compiled for compute capability 9.0 to 12.0 and compared with the reference in Triton's interpreter.",
    near=_OPS,
    solved=_solved,
    edits=WRITER_EDITS,
    places=(*ROWS, *WRITER),
    tests=(
        Place("recipes/glm53/stage/tests/vllm/test_nvfp4_scales.py", "tests/kernels/attention/test_nvfp4_scales.py"),
    ),
    evidence=(
        Evidence(
            "rows under 'rtn' are byte for byte those of vLLM's writer, and the other policies leave less error",
            "pytest tests/flashinfer_nvfp4/test_stock_writer_stock.py",
        ),
        Evidence(
            "the kernel writes what the reference encodes, byte for byte",
            "pytest tests/flashinfer_nvfp4/test_kernels_stock.py",
        ),
    ),
    records=("flashinfer_nvfp4:rows-after-fused-norm-until-0.32", "flashinfer_nvfp4:rows-after-fused-norm"),
    said=Said(
        "The writer divides each block's largest value by 6 and rounds that to the scale. Whichever scale is nearest "
        "is not the one with the least error: the step between 4 and 6 is wide, and the scale's own rounding moves all "
        "16 values. The format has no second scale to make up for it.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/models/deepseek_v32/attention.py",
        "vLLM's writer of nvfp4_ds_mla rows compares scales by their error.",
    ),
    renamed=WRITER_WORDS,
)
