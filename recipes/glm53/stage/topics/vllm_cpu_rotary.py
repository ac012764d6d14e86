"""vLLM: the CPU's rotary kernel on tensors with a dimension for heads."""

from __future__ import annotations

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CPU_ROTARY"]

_FILE = "model_executor/layers/rotary_embedding/base.py"
_SCOPE = "RotaryEmbedding.forward_cpu"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    flat = [name for name in ("query.view", "query.reshape", "query.flatten") if source.calls(_SCOPE, name)]
    return f"{source.file}: {_SCOPE} calls {flat[0]}" if flat else None


CPU_ROTARY = Topic(
    id="cpu-rotary",
    project=PROJECTS["vllm"],
    title="[CPU] Rotate queries that have a dimension for heads",
    releases=">=0.31,<0.34",
    how="RotaryEmbedding.forward_cpu hands tensors of more than two dimensions to the kernel as one row a token, and "
    "gives them back in their own shape.",
    risks="None on two dimensions, which are handed on as before. A tensor that is not contiguous is copied first, so "
    "callers must use what is returned, as they do on other platforms.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor=_SCOPE,
            where="first",
            code="""\
            if query.ndim > 2:
                # The kernel takes a row of the second dimension for a token.
                tokens = positions.numel()
                flat_key = None if key is None else key.reshape(tokens, -1)
                turned, turned_key = self.forward_cpu(
                    positions, query.reshape(tokens, -1), flat_key
                )
                return (
                    turned.view(query.shape),
                    None if key is None or turned_key is None else turned_key.view(key.shape),
                )
            """,
            blank=1,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_cpu_rotary.py", "tests/kernels/core/test_cpu_rotary.py"),),
    evidence=(
        Evidence(
            "of 24 rows [6 tokens, 4 heads, 64] the kernel turns some and leaves the others, error over 0.5; as "
            "[6, 256] the error is under 1e-5",
            "pytest tests/vllm_cpu_dsa/test_stock_faults_stock.py -k rotary",
        ),
    ),
    said=Said(
        "MLA passes queries as [tokens, heads, dim] to the rotary embedding. The CPU kernel takes each row of the "
        "second dimension for a token, so it turns most of them by wrong angles or not at all, and the model's answers "
        "are wrong without an error.",
        "https://github.com/vllm-project/vllm/issues/54018",
        "RotaryEmbedding.forward_cpu is right on three dimensions.",
    ),
)
