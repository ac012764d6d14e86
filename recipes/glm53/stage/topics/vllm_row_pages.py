"""vLLM: packed blocks that TRTLLM-gen still reads in pages of 64 tokens."""

from __future__ import annotations

import ast

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["ROW_PAGES"]

_FILE = "v1/attention/backends/mla/flashinfer_mla_sparse.py"
_BACKEND = "FlashInferMLASparseTRTLLMBackend"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for node in ast.walk(source.scope(_BACKEND)):
        if isinstance(node, ast.FunctionDef) and node.name == "customize_spec":
            return f"{source.file}: line {node.lineno} has a customize_spec of this backend's own"
    sizes = source.scope(f"{_BACKEND}.get_supported_kernel_block_sizes")
    bases = [node.value for node in ast.walk(sizes) if isinstance(node, ast.Constant) and isinstance(node.value, int)]
    return f"{source.file}: {_BACKEND} takes blocks of {bases}" if bases and min(bases) >= 64 else None


ROW_PAGES = Topic(
    id="row-pages",
    project=PROJECTS["vllm"],
    title="[Attention] FlashInfer sparse MLA: keep pages of 64 tokens in packed blocks",
    releases=">=0.32,<0.34",
    how="The TRTLLM-gen backend asks for blocks a whole number of 64 rows apart where the block size is a multiple of "
    "64, and of 32 as before where it is not. A block that is not packed is such a number long already, so only "
    "block-outermost layouts change; every block size that was taken still is.",
    risks="GLM-5.3's rows in fp8 become 0.59 % longer, and so does what a transfer sends; in 16 bits nothing changes. "
    "Prefill and decode workers must have the same release: the handshake compares the strides. What pages of 64 gain "
    "on SM100 is not measured.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor=f"{_BACKEND}.get_supported_kernel_block_sizes",
            where="after",
            code="""\
            @classmethod
            def customize_spec(cls, spec: AttentionSpec):
                # The kernel's page is the largest divisor of the blocks' distance, up
                # to 64 rows: packed blocks must not make it smaller than the block does.
                return align_blocks_to_rows(spec, math.gcd(spec.block_size, 64))
            """,
            blank=1,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_row_pages.py", "tests/v1/attention/test_trtllm_row_pages.py"),),
    evidence=(
        Evidence(
            "GLM-5.3 in fp8, BLHNC: rows of 3,098,112 bytes lie 3,115,008 apart, 32 tokens a page; 3,133,440 with the "
            "change, 64 tokens a page. In 16 bits 6,045,696 and 64 before and after",
            "pytest tests/vllm_blhnc/test_transfer_plan.py",
        ),
    ),
    records=("vllm_blhnc:row-alignment-until-0.32", "vllm_blhnc:row-alignment"),
    said=Said(
        "TRTLLM-gen reads a block-outermost cache in the largest pages, up to 64 tokens, that divide the distance of "
        "its blocks. vLLM aligns that to 32 tokens, so packing GLM-5.3's caches in fp8 halves the pages that the "
        "default layout has.",
        "https://github.com/vllm-project/vllm/pull/55528",
        "vLLM's TRTLLM-gen backend aligns blocks to 64 tokens, or has a setting for it.",
    ),
)
