"""FlashInfer: cluster sizes of the NVFP4 decode by the number of whole waves."""

from __future__ import annotations

from glm53.stage.edits import Body, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["WAVE_PLAN"]

_FILE = "experimental/nvfp4_sparse_mla_decode/backend.py"
_SCOPE = "select_num_ctas"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    return f"{source.file}: {_SCOPE} compares costs" if source.calls(_SCOPE, "min") else None


WAVE_PLAN = Topic(
    id="wave-plan",
    project=PROJECTS["flashinfer"],
    title="nvfp4_sparse_mla_decode: plan cluster sizes by whole waves",
    releases=">=0.7.4,<0.8",
    how="select_num_ctas takes the size whose waves, each as long as the stages of one CTA and an overhead of three, "
    "cost the least; among equal ones the fewer waves, then the larger size. Sizes that the device cannot run are left "
    "out.",
    risks="The overhead of three stages was measured on a B300 with a top-k of 2048. Where it is off, a launch near "
    "the border between two sizes may take the second best.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor=_SCOPE,
            where="before",
            code="""\
            # Stages that filling a CTA's ring and merging a cluster's partial results cost.
            OVERHEAD_STAGES = 3
            """,
            blank=2,
        ),
        Body(
            file=_FILE,
            scope=_SCOPE,
            code="""\
            sizes = [size for size in PLAN_CTAS if is_valid_config(topk_width, size)]
            if not sizes:
                raise ValueError(
                    f"topk_width={topk_width} gives no cluster size its stages of {STAGE_KEYS} keys"
                )
            runnable = [size for size in sizes if capacity.get(size, 0) > 0]
            if not runnable:
                return sizes[-1]

            def cost(size: int) -> tuple:
                waves = -(-max(num_tokens, 1) // capacity[size])
                stages = -(-topk_width // STAGE_KEYS // size)
                return waves * (stages + OVERHEAD_STAGES), waves, -size

            return min(runnable, key=cost)
            """,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/flashinfer/test_wave_plan.py", "tests/experimental/test_wave_plan.py"),),
    evidence=(
        Evidence(
            "by the model 1.5 times faster at 47 to 50 and 64 to 70 tokens, and never slower; the published times of "
            "45 and 47 tokens, 26.7 and 50.5 us, are 25 and 50 stages in it",
            "pytest tests/flashinfer_nvfp4/test_cluster_plan.py",
        ),
    ),
    said=Said(
        "The planner takes the largest cluster size whose launch fits into one wave, and the smallest if none does. "
        "Just beyond one wave the second one runs nearly empty, and a size that fills two waves evenly, or fits into "
        "one with less to do per CTA, would be faster.",
        "https://github.com/flashinfer-ai/flashinfer/issues/5716",
        "select_num_ctas compares the cost of whole waves.",
    ),
)
