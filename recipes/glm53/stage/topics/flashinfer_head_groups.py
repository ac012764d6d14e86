"""FlashInfer: other numbers of heads for the NVFP4 decode than 16."""

from __future__ import annotations

from glm53.stage.edits import Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["HEAD_GROUPS"]

_FOLDER = "experimental/nvfp4_sparse_mla_decode"
_FILE = f"{_FOLDER}/backend.py"
_MODULE = f"flashinfer.{_FOLDER}.head_groups".replace("/", ".")


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for scope in ("run", "_check_inputs"):
        for name in ("reshape", "query.reshape", "query.view", "query.repeat"):
            if source.calls(scope, name):
                return f"{source.file}: {scope} calls {name}"
    return None


HEAD_GROUPS = Topic(
    id="head-groups",
    project=PROJECTS["flashinfer"],
    title="nvfp4_sparse_mla_decode: take any number of query heads",
    releases=">=0.7.4,<0.8",
    how="More than 16 heads of a token become further tokens of 16 with the same indices, and missing heads are zeros. "
    "The planner sees the tokens that are launched. The launch of 16 heads is what it was. A log-sum-exp, which decode "
    "context parallelism needs, is not part of this.",
    risks="Rows that several groups of a token select are read once for each group. Padded heads are computed and "
    "thrown away. An output that is passed in is filled by a copy.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor="run",
            where="first",
            code="""\
            if query.dim() == 3 and query.shape[1] not in (0, NUM_HEADS):
                heads = query.shape[1]
                shape = (query.shape[0], heads, V_HEAD_DIM)
                if out is not None and (out.shape != shape or out.dtype != torch.bfloat16):
                    raise ValueError(
                        f"out must be {list(shape)} bfloat16, got {list(out.shape)} {out.dtype}"
                    )
                wide, repeated = grouped(query, indices, NUM_HEADS)
                found = run(
                    wide,
                    kv_cache,
                    repeated,
                    bmm1_scale=bmm1_scale,
                    bmm2_scale=bmm2_scale,
                    out=None,
                    num_ctas_per_token=num_ctas_per_token,
                )
                whole = ungrouped(found, heads)
                return whole if out is None else out.copy_(whole)
            """,
        ),
        Import(file=_FILE, code="from .head_groups import grouped, ungrouped"),
    ),
    places=(Place("plugins/flashinfer_nvfp4/head_groups.py", f"{{package}}/{_FOLDER}/head_groups.py", _MODULE),),
    tests=(
        Place("recipes/glm53/stage/tests/flashinfer/test_head_groups.py", "tests/experimental/test_head_groups.py"),
    ),
    evidence=(
        Evidence(
            "each head gets what it gets alone, for 1 to 128 heads, with the kernel's arithmetic in torch; nothing of "
            "it has run on a GPU",
            "pytest tests/flashinfer_nvfp4/test_launch_stock.py",
        ),
    ),
    said=Said(
        "The op takes 16 query heads, GLM-5's at tensor parallelism 4. Data-parallel attention has 64 of them on a "
        "GPU, tensor parallelism 8 has 8, and both are refused although nothing in the kernel depends on which token a "
        "group of heads belongs to.",
        "https://github.com/flashinfer-ai/flashinfer/issues/5716",
        "nvfp4_sparse_mla_decode takes other numbers of heads than 16.",
    ),
)
